"""A job of the code tool, from the caller's side: what it has written so far, how it ended."""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
import sys
import time
from pathlib import Path

from whale_envs.harness.helpers import ExecResult
from whale_envs.sandbox import isolation, launch
from whale_envs.sandbox.child import Child
from whale_envs.sandbox.launch import Zygote, ZygoteEnded

OUTPUT_BYTES = 64 * 1024  # of standard output and standard error each
STATUSES = {0: "ok", 1: "error", 3: "memory"}  # `runner`'s codes
_PACKAGE = Path(__file__).parent.parent


class Job(Child):
    """A child that runs a program, or the cells of a session.

    Args:
        zygote, memory_mb, cpu_seconds: as for `Child`.
        session: whether cells follow each other.
    """

    def __init__(self, zygote: Zygote, memory_mb: int, cpu_seconds: int, session: bool) -> None:
        self.output = (bytearray(), bytearray())
        self.killed = ""  # the status for which it was killed
        self.exit: tuple[int, float] | None = None  # wait status, processor seconds
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            self._out, their_out = _pipe(ours, theirs)
            self._err, their_err = _pipe(ours, theirs)
            super().__init__(zygote, memory_mb, cpu_seconds, their_out, their_err, session=session)
            self.resources.push(ours.pop_all())

    def start(self) -> None:
        """Wait until it is about to run its source; its time counts from then.

        Raises `ZygoteEnded` when it has ended before or its zygote hangs, `SandboxError` when it could not start.
        """
        try:
            self.wait_until_ready(launch.HUNG_SECONDS)
            self._pidfd = os.pidfd_open(self.pid)
        except (TimeoutError, ProcessLookupError):
            raise ZygoteEnded from None
        self.resources.callback(os.close, self._pidfd)
        self.started = time.perf_counter()

    def send(self, source: str, seconds: float) -> None:
        """Send it a program. `TimeoutError` if it does not read it, `ConnectionError` if it has ended."""
        data = source.encode("utf-8", "surrogatepass")
        self.socket.settimeout(seconds)
        self.socket.sendall(len(data).to_bytes(4, "big") + data)

    def kill(self, status: str) -> None:
        """Kill it, once, for a reason."""
        if not self.killed and self.exit is None:
            self.killed = status
            self._signal(signal.SIGKILL)

    def begin(self) -> None:
        """A cell begins: what was written before counts no more; threads that were stopped by `pause` go on."""
        self.output = (bytearray(), bytearray())
        self.started = time.perf_counter()
        self._signal(signal.SIGCONT)

    def pause(self) -> None:
        """Stop all its threads until the next `begin`."""
        self._signal(signal.SIGSTOP)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended, which is not read yet
            signal.pidfd_send_signal(self._pidfd, number)

    def follow(self, timeout: float, replies: bool = False) -> bytes:
        """Read what it writes until it has ended, killing it at its deadline or when it writes too much.

        Returns the byte that came on its socket, if it `replies`, after which it goes on living, or nothing: it has
        ended. Raises `ZygoteEnded` when its end is not reported in time.
        """
        reply = b""
        streams = {self._out: self.output[0], self._err: self.output[1]}
        poller = select.poll()
        for fd in (self._pidfd, *streams, *((self.socket.fileno(),) if replies else ())):
            poller.register(fd, select.POLLIN)
        while self.exit is None:
            left = timeout - (time.perf_counter() - self.started)
            if left <= -launch.HUNG_SECONDS:
                raise ZygoteEnded
            if left <= 0:
                self.kill("timeout")
            for fd, _ in poller.poll(1000.0 if self.killed else max(1.0, left * 1000)):
                if fd == self._pidfd:
                    self.exit = self.post_mortem()
                elif fd in streams:
                    if not self._read(fd, streams[fd]):
                        poller.unregister(fd)
                else:
                    poller.unregister(fd)
                    with contextlib.suppress(ConnectionResetError):  # it ended with a cell unread
                        reply = self.socket.recv(1)
            if reply and not self.killed:
                self._drain(streams)
                if not self.killed:
                    return reply
        self._drain(streams)
        return b""

    def _drain(self, streams: dict[int, bytearray]) -> None:
        for fd, stream in streams.items():
            while self._read(fd, stream):
                pass

    def _read(self, fd: int, stream: bytearray) -> bool:
        """Take what a pipe holds; False at its end, or when it is empty."""
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            return False
        room = OUTPUT_BYTES - len(stream)
        stream += data[:room]
        if len(data) > room:
            self.kill("output")
            self.killed = self.killed or "output"
        return bool(data)

    def result(self, timeout: float) -> ExecResult:
        """How it ended, in the words of `ExecResult`."""
        seconds = time.perf_counter() - self.started
        assert self.exit is not None
        code, cpu = os.waitstatus_to_exitcode(self.exit[0]), self.exit[1]
        status = self.killed or STATUSES.get(code, "killed" if code < 0 else "error")
        if code == -signal.SIGKILL and not self.killed and cpu >= timeout:
            status = "timeout"  # its processor time ran out: several threads use it up faster than the clock
        note = {
            "timeout": f"stopped after {timeout:g} s\n",
            "output": f"stopped: more than {OUTPUT_BYTES} bytes of output\n",
            "killed": f"stopped by signal {-code}\n",
        }.get(status, "")
        return ExecResult(*self.texts(note), status, seconds)

    def texts(self, note: str = "") -> tuple[str, str]:
        """What it has written so far, without this machine's paths; `note` comes last, on a line of its own."""
        stdout, stderr = (_without_paths(bytes(b).decode("utf-8", "replace")) for b in self.output)
        if note and stderr and not stderr.endswith("\n"):
            stderr += "\n"
        return stdout, stderr + note


def _pipe(ours: contextlib.ExitStack, theirs: contextlib.ExitStack) -> tuple[int, int]:
    read, write = os.pipe2(os.O_CLOEXEC)
    ours.callback(os.close, read)
    theirs.callback(os.close, write)
    os.set_blocking(read, False)
    return read, write


@functools.cache
def _paths() -> list[tuple[str, str]]:
    site = f"/python/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    roots = {str(isolation.PACKAGES): site, sys.prefix: "/python", sys.base_prefix: "/python"}
    roots[str(_PACKAGE)] = "/whale_envs"
    return sorted(
        ((path, name) for path, name in roots.items() if path != "/usr"),
        key=lambda p: -len(p[0]),
    )


def _without_paths(text: str) -> str:
    """The text with the directories of this installation renamed: they say nothing to a model, and differ elsewhere."""
    for path, name in _paths():
        text = text.replace(path, name)
    return text
