"""The processes that run a harness which is not trusted. Started by `whale_envs.harness.jail`, by path.

Usage: python jail_worker.py CONTROL PARENT [FOLDER...], with the setup (JSON) on standard input.

The process that is started is a zygote: it loads the few files of the package that a harness needs and all that a
harness may import, compiles the harness without executing a line of it, and then forks one worker per episode. A
worker confines itself, plays its one episode, and ends. So nothing that an episode leaves in memory outlives it, and
nothing of one episode is ever in the memory of another. Everything that a worker sends is treated as hostile by the
other side.

CONTROL is a socket on which requests come as datagrams, PARENT a pidfd of the process that started this one, and
FOLDERs are where third-party modules are found (the interpreter is started without `site`, for speed). The requests:

    F + token + a socket             fork a worker for that socket
    E + token [+ a pipe]             kill the worker, reap it, and write how it ended (wait status) to the pipe
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import random
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable
from types import CodeType, ModuleType
from typing import Any

PACKAGE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
MODULES = (
    "whale_envs.errors",
    "whale_envs.harness.helpers",
    "whale_envs.harness.wire",
    "whale_envs.harness.namespace",
)
#: What the standard library imports inside functions that a harness may call, where no file can be opened any more.
LATER = """types weakref warnings copy heapq encodings.idna encodings.punycode encodings.unicode_escape
encodings.raw_unicode_escape encodings.cp1252 encodings.utf_8_sig encodings.hex_codec encodings.rot_13""".split()
REQUEST = struct.Struct("!cQ")
#: An honest harness, to warm the code up with: a page that is written after a fork is one that has to be copied.
WARM = """
from whale_envs.harness import system, tag, tool, user

def run(task, tools):
    messages = [system("Answer."), user(f"Question: {task.question}")]
    while True:
        reply = yield messages
        if (answer := tag(reply.text, "answer")) is not None:
            return answer
        messages += [reply.message, tool("nothing")]
"""


def load(name: str) -> ModuleType:
    """Load one module of whale_envs without running the package's `__init__`, which imports Gymnasium."""
    parts = name.split(".")
    for at in range(1, len(parts)):
        parent = sys.modules.setdefault(".".join(parts[:at]), ModuleType(".".join(parts[:at])))
        parent.__path__ = [os.path.join(PACKAGE, *parts[1:at])]
    return importlib.import_module(name)


class Worker:
    """What a forked child does: confine itself, play one episode, end."""

    def __init__(self, setup: dict[str, Any]) -> None:
        self.errors, self.helpers, self.wire, self.namespace = map(load, MODULES)
        self.layers: Any = load("whale_envs.sandbox.layers")
        for name in (*sorted(self.namespace.ALLOWED_IMPORTS), *LATER):
            importlib.import_module(name)
        self.warm_code: CodeType = compile(WARM, "warm", "exec", dont_inherit=True)
        self.code: CodeType = compile(setup["source"], setup["name"], "exec", dont_inherit=True)
        self.memory_mb, self.cpu_seconds = setup["memory_mb"], setup["cpu_seconds"]
        self.address_space = self.layers.mapped_bytes() + (self.memory_mb << 20)
        # without a filter: the user said --unsafe
        self.confinement = self.layers.Confinement(bytes.fromhex(setup["seccomp"])) if setup["seccomp"] else None
        sys.path.clear()

    def confine(self, keep: set[int]) -> None:
        """Give up every right that an episode does not need."""
        if self.confinement is not None:
            self.confinement.apply(keep, self.memory_mb, self.cpu_seconds)
        else:
            self.layers.limit(keep, self.address_space, self.cpu_seconds)

    def live(self, fd: int) -> None:
        """A child's whole life. What it sends first is said before a line of the harness has run."""
        status = 1
        try:
            channel = self.wire.Channel(socket.socket(fileno=fd))
            self.warm(1)
            with contextlib.suppress(self.wire.Gone):  # the parent is gone or has closed its end
                try:
                    self.confine({fd})
                except (OSError, ValueError, self.layers.ConfinementError) as error:
                    channel.send({"unfit": str(error)})
                else:
                    channel.send({"ready": os.getpid()})
                    self.play(channel, self.code)
            status = 0
        finally:
            os._exit(status)

    def play(self, channel: Any, code: CodeType) -> None:
        """Play one episode: answer the parent's frames until the harness has answered or failed."""

        def call_tool(tool: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
            try:
                channel.send({"tool": [tool, args, kwargs]})
                frame = channel.receive()
            except BaseException:  # cut off in the middle, by a full stack or memory: frames would not match any more
                os._exit(1)
            if "error" in frame:
                raise self.errors.ToolUseError(frame["error"])
            return self.wire.unpack(frame["result"])

        start = channel.receive()
        random.seed(start["seed"])  # the global one, which `statistics` draws from
        view = self.helpers.TaskView(self.wire.unpack(start["shown"]))
        run = self.namespace.Run(code, view, call_tool, start["seed"], lambda text: None)
        reply = None
        messages: list[dict[str, Any]] = []
        while True:
            kind, value = run.resume(reply)
            if kind != "ask":
                channel.send({kind: value})
                return
            channel.send({kind: self.wire.fields_of(value, messages)})
            messages = value.messages
            text, finish_reason, tool_calls = channel.receive()
            reply = self.helpers.ReplyView(text, finish_reason, tuple(tool_calls))

    def warm(self, turns: int) -> None:
        """Play an episode of our own against nobody: it leaves nothing but warm code and copied pages."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            channel = self.wire.Channel(ours)
            channel.send({"shown": {"dict": {"question": ""}}, "seed": 0})
            for _ in range(turns):
                channel.send(["...", "stop", []])
            channel.send(["<answer></answer>", "stop", []])
            self.play(self.wire.Channel(theirs), self.warm_code)

    def probe(self) -> str:
        """What a confined child can do that it must not; nothing if it is contained."""
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.write(theirs, self.escapes({theirs}).encode())
            finally:
                os._exit(0)
        os.close(theirs)
        with open(ours, "rb") as file:
            said = file.read().decode()
        _, status = os.waitpid(pid, 0)
        return said.removesuffix(".") if said.endswith(".") else f"it ended ({status}) after {said!r}"

    def escapes(self, keep: set[int]) -> str:
        """Confine this process and try what must fail; ends in a full stop."""
        self.confine(keep)
        parent = os.getppid()
        probes: dict[str, Callable[[], object]] = {
            "reads a file": lambda: os.open(__file__, os.O_RDONLY),
            "forks": os.fork,
            "opens a socket": socket.socket,
            "signals its parent": lambda: os.kill(parent, 0),
            "starts a thread": lambda: __import__("_thread").start_new_thread(int, ()),
        }
        done = []
        for name, probe in probes.items() if self.confinement is not None else ():
            with contextlib.suppress(OSError, RuntimeError):
                probe()
                done.append(name)
        return ", ".join(done) + "."


class Zygote:
    """The loop: fork on a request, kill and reap on another, and take all workers along when the parent is gone."""

    def __init__(self, control: int, parent: int, worker: Worker) -> None:
        self.control, self.parent, self.worker = socket.socket(fileno=control), parent, worker
        self.workers: dict[int, int] = {}  # token: process id

    def serve(self) -> None:
        """Serve requests until the parent closes its end or ends."""
        poller = select.poll()
        for fd in (self.control.fileno(), self.parent):
            poller.register(fd, select.POLLIN)
        while not any(fd == self.parent for fd, _ in poller.poll()):
            message, fds, _, _ = socket.recv_fds(self.control, REQUEST.size, 1)
            if not message:
                return
            kind, token = REQUEST.unpack(message)
            if kind == b"F":
                self.fork(token, fds[0])
            else:
                status = self.end(token)
                for fd in fds:
                    with contextlib.suppress(BrokenPipeError):  # whoever asked was interrupted
                        os.write(fd, str(status).encode())
            for fd in fds:
                os.close(fd)

    def fork(self, token: int, fd: int) -> None:
        """Fork a worker."""
        try:
            pid = os.fork()
        except OSError as error:  # too many processes, or too little memory
            channel = self.worker.wire.Channel(socket.socket(fileno=os.dup(fd)))
            advice = "allow more processes (ulimit -u, or the container's limit), or run fewer episodes at once"
            with channel.socket, contextlib.suppress(self.worker.wire.Gone):
                channel.send({"unfit": f"cannot fork: {error.strerror}; {advice}"})
            return
        if pid == 0:
            self.worker.live(fd)
        self.workers[token] = pid

    def end(self, token: int) -> int:
        """Kill a worker and reap it; its wait status. It may have ended by itself before."""
        pid = self.workers.pop(token, None)
        if pid is None:
            return 0
        os.kill(pid, signal.SIGKILL)  # no other process can have its number while it is not reaped
        return os.waitpid(pid, 0)[1]

    def close(self) -> None:
        """Kill what still runs."""
        for token in list(self.workers):
            self.end(token)


def main() -> None:
    """Load, try the confinement, serve."""
    control, parent = int(sys.argv[1]), int(sys.argv[2])
    sys.path += sys.argv[3:]
    worker = Worker(json.load(sys.stdin))
    worker.warm(16)  # by then the interpreter has specialised the code and does not write to it any more
    escaped = worker.probe()
    gc.collect()
    gc.freeze()  # a collection in a child would otherwise copy every page
    zygote = Zygote(control, parent, worker)
    zygote.control.send(f"a confined process {escaped}".encode() if escaped else b"ready")
    if escaped:
        return
    try:
        zygote.serve()
    finally:
        zygote.close()


if __name__ == "__main__":
    main()
