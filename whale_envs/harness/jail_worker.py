"""The processes that run a harness which is not trusted. Started by `whale_envs.harness.jail`, by path.

Usage: python jail_worker.py CONTROL PARENT, with the setup (JSON) on standard input.

The process that is started is a zygote: it loads the few files of the package that a harness needs and all that a
harness may import, compiles the harness without executing a line of it, and then forks one worker per episode. A
worker confines itself, plays its one episode, and ends. So nothing that an episode leaves in memory outlives it, and
nothing of one episode is ever in the memory of another. Everything that a worker sends is treated as hostile by the
other side.

CONTROL is a socket on which requests come as datagrams, PARENT a pidfd of the process that started this one. The
interpreter is started without `site`, for speed: no third-party module is found. The requests:

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
from types import CodeType, ModuleType
from typing import Any

PACKAGE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
MODULES = (
    "whale_envs.errors",
    "whale_envs.harness.helpers",
    "whale_envs.harness.wire",
    "whale_envs.harness.namespace",
    "whale_envs.sandbox.layers",
    "whale_envs.sandbox.probes",
)
#: What the standard library imports inside functions that a harness may call, where no file can be opened any more.
LATER = """types weakref warnings copy heapq encodings.idna encodings.punycode encodings.unicode_escape
encodings.raw_unicode_escape encodings.cp1252 encodings.utf_8_sig encodings.hex_codec encodings.rot_13""".split()
REQUEST = struct.Struct("!cQ")
#: Kept here, since a harness may put another function in its place.
_end = os._exit
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
    """Load one module of whale_envs without running the packages around it, which import Gymnasium."""
    parts = name.split(".")
    for at in range(1, len(parts)):
        parent = sys.modules.setdefault(".".join(parts[:at]), ModuleType(".".join(parts[:at])))
        parent.__path__ = [os.path.join(PACKAGE, *parts[1:at])]
    return importlib.import_module(name)


class Worker:
    """What a forked child does: confine itself, play one episode, end.

    A fork is paid for by the page: each that the child is the first to write to, if only to count a reference, has to
    be copied. So whatever can be made before the fork is.
    """

    def __init__(self, setup: dict[str, Any]) -> None:
        self.errors, self.helpers, self.wire, self.namespace, self.layers, self.probes = map(load, MODULES)
        for name in (*sorted(self.namespace.ALLOWED_IMPORTS), *LATER):
            importlib.import_module(name)
        self.memory_mb, self.cpu_seconds = setup["memory_mb"], setup["cpu_seconds"]
        self.limits = self.layers.Limits()
        # without a filter: the user said --unsafe
        seccomp = bytes.fromhex(setup["seccomp"])
        self.confinement = self.layers.Confinement(seccomp, setup["rules"]) if seccomp else None
        code = compile(setup["source"], setup["name"], "exec", dont_inherit=True)
        self.warm_code: CodeType = compile(WARM, "warm", "exec", dont_inherit=True)
        self.channel: Any = None
        self.run = self.new_run(code)
        sys.path.clear()

    def new_run(self, code: CodeType) -> Any:
        """An episode that has not begun."""
        return self.namespace.Run(code, self.call_tool, lambda text: None)

    def call_tool(self, tool: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Have the parent call a tool."""
        try:
            self.channel.send({"tool": [tool, args, kwargs]})
            frame = self.channel.receive()
        except BaseException:  # cut off in the middle, by a full stack or memory: frames would not match any more
            _end(1)
        if "error" in frame:
            raise self.errors.ToolUseError(frame["error"])
        return self.wire.unpack(frame["result"])

    def confine(self, keep: set[int]) -> None:
        """Give up every right that an episode does not need."""
        what = self.limits if self.confinement is None else self.confinement
        what.apply(keep, self.memory_mb, self.cpu_seconds)

    def live(self, fd: int) -> None:
        """A child's whole life. What it sends first is said before a line of the harness has run."""
        status = 1
        try:
            self.channel = self.wire.Channel(fd)
            try:
                self.confine({fd})
            except (OSError, ValueError, self.layers.ConfinementError) as error:
                self.channel.send({"unfit": str(error)})
            else:
                self.channel.send({"ready": os.getpid()})
                self.play(self.run)
            status = 0
        except self.wire.Gone:  # the parent is, or has closed its end
            status = 0
        finally:
            _end(status)

    def play(self, run: Any) -> None:
        """Play one episode: answer the parent's frames until the harness has answered or failed."""
        channel = self.channel
        start = channel.receive()
        # the global one, which Python seeds anew in each child: no harness is given it, and one that gets at it all the
        # same plays the same episode again
        random.seed(start["seed"])
        run.begin(self.helpers.TaskView(self.wire.unpack(start["shown"])), start["seed"])
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
        """Play an episode of our own against nobody: it leaves nothing but warm code."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            channel = self.wire.Channel(ours.fileno())
            channel.send({"shown": {"dict": {"question": ""}}, "seed": 0})
            for _ in range(turns):
                channel.send(["...", "stop", []])
            channel.send(["<answer></answer>", "stop", []])
            self.channel = self.wire.Channel(theirs.fileno())
            self.play(self.new_run(self.warm_code))

    def probe(self) -> str:
        """What a confined child can do that it must not; nothing if it is contained."""
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.write(theirs, self.escapes({theirs}).encode())
            finally:
                _end(0)
        os.close(theirs)
        with open(ours, "rb") as file:
            said = file.read().decode()
        _, status = os.waitpid(pid, 0)
        return said.removesuffix(".") if said.endswith(".") else f"it ended ({status}) after {said!r}"

    def escapes(self, keep: set[int]) -> str:
        """Confine this process and try what must fail; ends in a full stop."""
        self.confine(keep)
        return ", ".join(self.probes.escapes(__file__, threads=False) if self.confinement is not None else ()) + "."


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
            advice = "allow more processes (ulimit -u, or the container's limit), or run fewer episodes at once"
            with contextlib.suppress(self.worker.wire.Gone):
                self.worker.wire.Channel(fd).send({"unfit": f"cannot fork: {error.strerror}; {advice}"})
            return
        if pid == 0:
            try:
                self.worker.live(fd)
            finally:  # never back into this loop, which is the parent's
                _end(1)
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
