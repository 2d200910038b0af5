"""One forked child of a zygote, from the caller's side: what it has written so far, how it ended."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from pathlib import Path

from whale_envs.harness.helpers import ExecResult
from whale_envs.sandbox import isolation, launch
from whale_envs.sandbox.launch import SandboxError, ZygoteEnded, ZygoteProcess

OUTPUT_BYTES = 64 * 1024  # of standard output and standard error each
STATUSES = {0: "ok", 1: "error", 3: "memory"}  # `runner`'s codes
_EXITED = struct.Struct("<cid")
_PACKAGE = Path(__file__).parent.parent


class Child:
    """A child that was asked of `zygote`.

    Args:
        zygote: where it is forked. Raises `ZygoteEnded` when that is gone.
        source: descriptor of the program, or of the socket that a session's cells come from; stays the caller's.
        memory_mb: MiB that it may allocate.
        cpu_seconds: processor time over its life.
        session: whether cells follow each other.
    """

    def __init__(self, zygote: ZygoteProcess, source: int, memory_mb: int, cpu_seconds: int, session: bool) -> None:
        self.output = (bytearray(), bytearray())
        self.confined = False
        self.killed = ""  # the status for which it was killed
        self.exit: tuple[int, float] | None = None  # wait status, processor seconds
        self.started = time.perf_counter()
        self.resources = contextlib.ExitStack()  # holds no reference to this object: it may outlive it
        self._pidfd = -1
        theirs = contextlib.ExitStack()
        try:
            with theirs:
                self._out, their_out = self._pipe(theirs)
                self._err, their_err = self._pipe(theirs)
                self._status, their_status = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                self.resources.enter_context(self._status)
                self._status.settimeout(launch.HUNG_SECONDS)
                theirs.enter_context(their_status)
                asked = {"memory_mb": memory_mb, "cpu_seconds": cpu_seconds, "session": session}
                fds = [source, their_out, their_err, their_status.fileno()]
                socket.send_fds(zygote.control, [json.dumps(asked).encode()], fds)
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            self.close()
            raise ZygoteEnded from None
        except BaseException:
            self.close()
            raise

    def _pipe(self, theirs: contextlib.ExitStack) -> tuple[int, int]:
        ours, other = os.pipe2(os.O_CLOEXEC)
        self.resources.callback(os.close, ours)
        theirs.callback(os.close, other)
        os.set_blocking(ours, False)
        return ours, other

    def close(self) -> None:
        """Kill it if it still runs, and give up everything held for it. May be called again."""
        self.resources.close()

    def kill(self, status: str) -> None:
        """Kill it, once, for a reason."""
        if not self.killed and self._pidfd >= 0 and self.exit is None:
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

    def hear(self) -> None:
        """Wait for one message of the zygote, or of the child while it does not run the source yet.

        Raises `ZygoteEnded` when it is gone or does not answer, `SandboxError` when it could not do what was asked.
        """
        try:
            message, fds, _, _ = socket.recv_fds(self._status, 4096, 1)
        except (ConnectionResetError, TimeoutError):
            raise ZygoteEnded from None
        kind = message[:1]
        if kind == b"P":
            self._pidfd, self.started = fds[0], time.perf_counter()
            self.resources.callback(_end, self._pidfd, os.getpid())
        elif kind == b"R":
            self.confined = True
        elif kind == b"F":
            raise SandboxError(message[1:].decode())
        elif kind == b"X":
            _, status, cpu = _EXITED.unpack(message)
            self.exit = (status, cpu)
        else:
            raise ZygoteEnded

    def wait_until_started(self) -> None:
        """Wait until it is about to run its source, or has ended."""
        while self.exit is None and not (self.confined and self._pidfd >= 0):  # the two are heard in any order
            self.hear()

    def follow(self, timeout: float, replies: socket.socket | None = None) -> bytes:
        """Read what it writes until it has ended, killing it at its deadline or when it writes too much.

        Returns the byte that came on `replies`, after which it goes on living, or nothing: it has ended. Raises
        `ZygoteEnded` when its end is not reported in time.
        """
        reply = b""
        streams = {self._out: self.output[0], self._err: self.output[1]}
        poller = select.poll()
        for fd in (self._status.fileno(), *streams):
            poller.register(fd, select.POLLIN)
        if replies is not None:
            poller.register(replies, select.POLLIN)
        while self.exit is None:
            left = timeout - (time.perf_counter() - self.started)
            if left <= -launch.HUNG_SECONDS:
                raise ZygoteEnded
            if left <= 0:
                self.kill("timeout")
            for fd, _ in poller.poll(1000.0 if self.killed else max(1.0, left * 1000)):
                if fd == self._status.fileno():
                    self.hear()
                elif fd in streams:
                    if not self._read(fd, streams[fd]):
                        poller.unregister(fd)
                elif replies is not None:
                    poller.unregister(fd)
                    with contextlib.suppress(ConnectionResetError):  # it ended with a cell unread
                        reply = replies.recv(1)
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
        if not self.confined and not self.killed:
            raise SandboxError(f"a job ended (exit code {code}) before its source was started")
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


def _end(pidfd: int, owner: int) -> None:
    if owner == os.getpid():  # a forked copy of the caller leaves it alone
        with contextlib.suppress(ProcessLookupError):  # it has ended
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    os.close(pidfd)


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
