"""A clean process that has everything imported and forks confined children: `python -P -s zygote.py CONFIG`.

What a child does is its payload's affair: a job of the code tool (`runner`) or an episode of a harness
(`whale_envs.harness.jail_worker`). Descriptor 3 is the control socket, 4 a pidfd of the process that started this one,
5 the Landlock rules (where the kernel has Landlock), 0 the null device. CONFIG and the requests, datagrams on the
control socket, are JSON objects. A request has a `token`, which is the caller's name for a child, and descriptors:

    fork + a socket [+ standard output and error]
                            fork a child. The first that comes on its socket is R, once it has confined itself and
                            before it looks at anything, or F and why there is none
    nest + a control socket + a file of JSON
                            fork a zygote of the same kind, whose payload is given the content of the file
    end [+ a pipe]          kill a child unless it has ended, reap it, and write its wait status and the processor
                            seconds that it used to the pipe; a nested zygote leaves when its control socket is closed

A child has only what its socket brings, so nothing of another one or of the process that asked is in its memory.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.machinery
import json
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

PACKAGE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
if TYPE_CHECKING:  # it would bring a dozen modules along, each page and mapping of which is copied at every fork
    from importlib.abc import MetaPathFinder
else:  # modules of the package without the packages around them, which import Gymnasium
    for _name in ("", ".sandbox", ".harness"):
        sys.modules["whale_envs" + _name] = ModuleType("whale_envs" + _name)
        sys.modules["whale_envs" + _name].__path__ = [PACKAGE + _name.replace(".", os.sep)]

from whale_envs.sandbox import probes  # noqa: E402
from whale_envs.sandbox.layers import Confinement, ConfinementError, Limits  # noqa: E402

CONTROL, PARENT, RULES = 3, 4, 5
LEAVE_SECONDS = 2


class Payload(Protocol):
    """What children do: the class `Payload` of a module, made before any fork from the options in CONFIG.

    A fork is paid for by the page: each that a child is the first to write to, if only to count a reference, has to be
    copied. So whatever can be made before the fork is.
    """

    #: Whether a child goes on when its zygote was killed.
    outlives: bool
    #: What finds modules that are not imported yet, besides those that the interpreter has built in.
    finders: Sequence[MetaPathFinder]

    def specialise(self, **options: Any) -> None:
        """In a nested zygote: get ready for the children of this one."""

    def live(self, fd: int, request: dict[str, Any]) -> int:
        """A confined child's whole life, with its socket and what was asked; the exit code."""


class Zygote:
    """The loop: fork on a request, kill and reap on another, leave when the parent is gone and take all along."""

    def __init__(self, payload: Payload, own_user: bool, seccomp: bytes, rules: int) -> None:
        self.payload, self.own_user = payload, own_user
        self.confinement = Confinement(seccomp, rules) if seccomp else None  # None: the user said --unsafe
        self.limits = Limits()
        self.control = socket.socket(fileno=CONTROL)
        self.children: dict[int, int] = {}  # token: process id
        self.nested: dict[int, int] = {}

    def serve(self) -> None:
        """Serve requests until the parent closes its end or ends."""
        poller = select.poll()
        for fd in (CONTROL, PARENT):
            poller.register(fd, select.POLLIN)
        while not any(fd == PARENT for fd, _ in poller.poll()):
            message, fds, _, _ = socket.recv_fds(self.control, 4096, 3)
            if not message:
                return
            request = json.loads(message)
            if request["do"] == "end":
                self.end(request["token"], fds)
            else:
                self.fork(request, fds)
            for fd in fds:
                os.close(fd)

    def fork(self, request: dict[str, Any], fds: list[int]) -> None:
        """Fork a child, or a zygote."""
        nests, parent = request["do"] == "nest", os.getpid()
        try:
            pid = os.fork()
        except OSError as error:  # too many processes, or too little memory
            advice = "allow more processes (ulimit -u, or the container's limit), or run fewer at once"
            with contextlib.suppress(OSError):  # whoever asked is gone
                os.write(fds[0], f"Fcannot fork: {error.strerror}; {advice}".encode())
            return
        if pid == 0:
            end = os._exit  # kept here, since what runs may put another function in its place
            try:
                (self.nest if nests else self.child)(request, fds, parent, end)
            finally:  # never back into this loop, which is the parent's
                end(1)
        (self.nested if nests else self.children)[request["token"]] = pid

    def child(self, request: dict[str, Any], fds: list[int], parent: int, end: Any) -> None:
        """Confine this process, live, and end."""
        sock, *standard = fds
        try:
            self.confine(sock, standard, request["memory_mb"], request["cpu_seconds"], parent)
        except (OSError, ValueError, ConfinementError) as error:
            os.write(sock, f"F{error}".encode())
        else:
            os.write(sock, b"R")
            end(self.payload.live(sock, request))

    def confine(self, sock: int, standard: Sequence[int], memory_mb: int, cpu_seconds: int, parent: int) -> None:
        """Give up every right that a child does not need."""
        keep = {sock}
        if standard:
            for number, fd in enumerate(standard, 1):
                os.dup2(fd, number)
            keep |= {0, 1, 2}
        if self.confinement is None:
            os.setsid()
            self.limits.apply(keep, memory_mb, cpu_seconds)
        else:
            with_parent = None if self.payload.outlives else parent
            self.confinement.apply(keep, memory_mb, cpu_seconds, self.own_user, with_parent)

    def nest(self, request: dict[str, Any], fds: list[int], parent: int, end: Any) -> None:
        """Become a zygote of its own, which leaves when the one that it was forked from does."""
        control, file = fds
        for fd, number in ((control, CONTROL), (os.pidfd_open(parent), PARENT)):
            os.dup2(fd, number)
            os.close(fd)
        with open(file, encoding="utf-8") as text:
            options = json.load(text)
        self.children, self.nested = {}, {}
        self.payload.specialise(**options)
        gc.freeze()
        self.run("ready")
        end(0)

    def run(self, said: str) -> None:
        """Say something first, and serve."""
        with contextlib.suppress(BrokenPipeError):  # the caller is gone already, which `serve` will find
            self.control.send(said.encode())
        try:
            self.serve()
        finally:
            self.close()

    def end(self, token: int, fds: Sequence[int]) -> None:
        """Kill, reap, and tell."""
        pid = self.children.pop(token, None)
        if pid is not None:
            self.kill(pid)
        elif (pid := self.nested.pop(token, None)) is not None:
            self.see_off(pid)
        else:  # it was never forked
            return
        _, status, usage = os.wait4(pid, 0)
        for fd in fds:
            with contextlib.suppress(BrokenPipeError):  # whoever asked was interrupted
                os.write(fd, f"{status} {usage.ru_utime + usage.ru_stime}".encode())

    def kill(self, pid: int) -> None:
        """Kill a child; no other process can have its number while it is not reaped."""
        if self.confinement is None:  # nothing kept it from starting processes
            with contextlib.suppress(ProcessLookupError):  # it has not come so far
                os.killpg(pid, signal.SIGKILL)
        os.kill(pid, signal.SIGKILL)

    def see_off(self, pid: int) -> None:
        """Give a nested zygote, whose control socket is closed, time to kill what it has; it may hang."""
        pidfd = os.pidfd_open(pid)
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        if not poller.poll(LEAVE_SECONDS * 1000):
            os.kill(pid, signal.SIGKILL)
        os.close(pidfd)

    def close(self) -> None:
        """Kill what still runs. Nested zygotes leave by themselves, as this one does, to kill what they have."""
        for pid in self.children.values():
            self.kill(pid)

    def escapes(self, threads: bool) -> str:
        """What a confined child can do that it must not; nothing if it is contained."""
        if self.confinement is None:
            return ""
        ours, theirs = os.pipe()
        parent, pid = os.getpid(), os.fork()
        if pid == 0:
            try:
                self.confine(theirs, (), 256, 30, parent)
                os.write(theirs, f"{', '.join(probes.escapes(__file__, threads))}.".encode())
            except ConfinementError as error:
                os.write(theirs, f"{error}.".encode())
            finally:
                os._exit(0)
        os.close(theirs)
        with open(ours, "rb") as file:
            said = file.read().decode()
        _, status = os.waitpid(pid, 0)
        return said[:-1] if said.endswith(".") else f"ended with status {status}"


def main() -> None:
    """Import what children may need, try the confinement, say that it is ready, and serve."""
    config = json.loads(sys.argv[1])
    os.closerange(RULES + 1, 1 << 16)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # children have a limit of their own
    os.chdir("/")
    payload: Payload = importlib.import_module(config["payload"]).Payload(**config["options"])
    zygote = Zygote(payload, config["own_user"], bytes.fromhex(config["seccomp"]), RULES if config["landlock"] else -1)
    sys.meta_path[:] = [importlib.machinery.BuiltinImporter, importlib.machinery.FrozenImporter, *payload.finders]
    sys.path[:] = []
    sys.path_importer_cache.clear()
    sys.argv[:] = [""]
    escaped = zygote.escapes(config["threads"])
    gc.collect()
    gc.disable()
    gc.freeze()  # a collection in a child would otherwise copy every page
    if escaped:
        zygote.control.send(f"a probe {escaped}".encode())
    else:
        zygote.run("ready")


if __name__ == "__main__":
    main()
