"""The processes of a jail, from the side that trusts nothing: the zygote of a harness, and the worker of an episode.

What runs in them is `whale_envs.harness.jail_worker`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from whale_envs.errors import UserError
from whale_envs.harness.jail_worker import REQUEST
from whale_envs.harness.load import Harness
from whale_envs.harness.wire import Channel, Gone
from whale_envs.sandbox import layers
from whale_envs.sandbox.isolation import require

_WORKER = Path(__file__).with_name("jail_worker.py")
#: How often the limits on time are looked at while a worker says nothing: every 50 ms, as a `struct timeval`.
_SLICE = struct.pack("ll", 0, 50_000)


@dataclass(frozen=True)
class JailLimits:
    """What an episode of a jailed harness may use.

    Frames and values are bounded in `whale_envs.harness.wire`, tool calls in `whale_envs.harness.session`, model calls
    by the domain (`Domain.max_asks`).
    """

    #: Processor seconds between two model calls: on a busy machine a harness is not failed for what others do.
    seconds: float = 5.0
    #: Wall-clock seconds between two model calls, tool calls not counted: for one that waits and does nothing.
    wall_seconds: float = 30.0
    #: Processor seconds in all.
    cpu_seconds: int = 60
    #: Address space beyond what the worker needs for itself, in MiB.
    memory_mb: int = 512
    #: Wall-clock seconds for a process to start (the zygote takes about 0.2, a worker 0.001).
    start_seconds: float = 60.0
    #: Workers lost one after the other, no episode getting past that turn, before the harness is given up: one that
    #: loops for ever in every episode would otherwise cost `seconds` times the number of episodes.
    losses: int = 8


class Zygote:
    """A running zygote and the socket for its requests.

    It is not put inside bubblewrap where that is to be had: that hides which files and processes exist, and a worker,
    with no system call left that takes a path or a process, cannot ask; each candidate would pay for it at its start
    (some 60 ms, where this process takes 200).
    """

    _tokens = itertools.count(1)

    def __init__(self, harness: Harness, limits: JailLimits, hash_seed: int) -> None:
        self.name = harness.name
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # -I without -E, since one variable has to get through: set order must be the same in every worker
        argv = [sys.executable, "-s", "-P", "-S", "-B", "-W", "ignore", str(_WORKER)]
        with contextlib.ExitStack() as passed:
            passed.enter_context(theirs)
            parent = _kept(passed, os.pidfd_open(os.getpid()))
            seccomp = _filter()
            rules = _kept(passed, layers.no_rights()) if seccomp else -1
            setup = {
                "source": harness.source,
                "name": harness.name,
                "seccomp": seccomp.hex(),
                "rules": rules,
                "memory_mb": limits.memory_mb,
                "cpu_seconds": limits.cpu_seconds + 1,  # the parent stops it before
            }
            file = passed.enter_context(open(os.memfd_create("setup"), "w+", encoding="utf-8"))
            json.dump(setup, file)
            file.seek(0)
            self.process = subprocess.Popen(
                [*argv, str(theirs.fileno()), str(parent)],
                stdin=file,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[fd for fd in (theirs.fileno(), parent, rules) if fd >= 0],
                # names are looked up once, at the start, and not by each worker for itself
                env={"PYTHONHASHSEED": str(hash_seed), "LD_BIND_NOW": "1"},
                cwd="/",
                start_new_session=True,  # a Ctrl-C at the terminal is for us
            )
        self._pid = os.getpid()
        self.end = weakref.finalize(self, _end_zygote, self.process, self.control, self._pid)
        self.control.settimeout(limits.start_seconds)
        try:
            said = self.control.recv(4096).decode() or self.status()
        except (TimeoutError, ConnectionResetError) as error:
            said = f"{error} ({self.status()})"
        if said != "ready":
            self.end()
            raise UserError(f"cannot start the jail for {harness.name}: {said}; `whale doctor` says what is missing")
        self.control.settimeout(None)

    def token(self) -> int:
        """A name for a worker."""
        return next(self._tokens)

    def fork(self, token: int, sock: socket.socket) -> None:
        """Have a worker forked for a socket. `Gone` if this process is gone."""
        self._request(b"F", token, sock.fileno())

    def reap(self, token: int) -> None:
        """Kill a worker."""
        if self._pid == os.getpid():  # it is not for a forked copy of this process
            with contextlib.suppress(Gone):  # what it forked ends when its socket does
                self._request(b"E", token)

    def post_mortem(self, token: int) -> str:
        """How a worker ended, in words; it is killed if it has not."""
        ours, theirs = os.pipe()
        with open(ours, "rb") as file:
            try:
                self._request(b"E", token, theirs)
            except Gone:
                return "nobody knows how"
            finally:
                os.close(theirs)
            status = file.read()
        return _in_words(os.waitstatus_to_exitcode(int(status))) if status else "nobody knows how"

    def _request(self, kind: bytes, token: int, *fds: int) -> None:
        try:
            socket.send_fds(self.control, [REQUEST.pack(kind, token)], fds)
        except OSError as error:
            raise Gone(f"cannot send: {error.strerror}") from None

    @property
    def alive(self) -> bool:
        """Whether it runs, and is ours (a forked copy of this process must not talk to it)."""
        return self.process.poll() is None and self._pid == os.getpid()

    def status(self) -> str:
        """How it ended, in words."""
        try:
            return _in_words(self.process.wait(1))
        except subprocess.TimeoutExpired:
            return "still running"


@functools.cache
def _filter() -> bytes:
    """The seccomp filter of a worker: the sandbox's without threads, which no harness can start honestly."""
    return layers.compile_filter(threads=False) if require().seccomp else b""


def _in_words(exit_code: int) -> str:
    return f"killed by {signal.Signals(-exit_code).name}" if exit_code < 0 else f"exit status {exit_code}"


def _kept(resources: contextlib.ExitStack, fd: int) -> int:
    """The descriptor, which is closed with the others; -1 is none."""
    if fd >= 0:
        resources.callback(os.close, fd)
    return fd


def _end_zygote(process: subprocess.Popen[bytes], control: socket.socket, owner: int) -> None:
    control.close()  # on which it kills its workers and ends
    if os.getpid() == owner:
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Worker:
    """The process of one episode and the socket to it."""

    def __init__(self, zygote: Zygote, limits: JailLimits) -> None:
        self._limits = limits
        self._zygote = zygote
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise UserError(
                f"cannot start an episode of {zygote.name}: {error.strerror}; each running episode takes a descriptor: "
                "allow more (ulimit -n), or run fewer at once"
            ) from None
        self.end = weakref.finalize(self, _end_worker, zygote, token := zygote.token(), ours)
        self._token, self.pid = token, 0
        for limit in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):  # by the kernel: a call of `poll` for each frame less
            ours.setsockopt(socket.SOL_SOCKET, limit, _SLICE)
        self._channel = Channel(ours.fileno(), msgspec.json.encode, msgspec.json.decode)
        try:
            with theirs:
                zygote.fork(token, theirs)
        except Gone:
            self.end()
            raise

    def ready(self) -> None:
        """Wait until it can play. `UserError` if it cannot, `Gone` if it has ended."""
        self._cpu_end, self._wall_end = float("inf"), time.monotonic() + self._limits.start_seconds
        try:
            frame = self._channel.receive(self._check)
        except TimeoutError:
            frame = {"unfit": f"not ready after {self._limits.start_seconds:g} s"}
        if "ready" not in frame:
            self.end()
            raise UserError(f"cannot start an episode of {self._zygote.name}: {frame['unfit']}")
        self.pid = frame["ready"]

    def begin(self) -> None:
        """The limits on time count from now."""
        self._cpu_end = min(self._cpu() + self._limits.seconds, self._limits.cpu_seconds)
        self._wall_end = time.monotonic() + self._limits.wall_seconds

    def pause(self, seconds: float) -> None:
        """So many wall-clock seconds do not count."""
        self._wall_end += seconds

    def send(self, frame: Any) -> None:
        """Send a frame. `TimeoutError` past a limit, `Gone` if the worker is."""
        self._channel.send(frame, self._check)

    def receive(self) -> Any:
        """The next frame. Raises as `send` does, and `WireError` for what is no frame."""
        return self._channel.receive(self._check)

    def _check(self) -> None:
        if self._cpu() >= self._cpu_end or time.monotonic() >= self._wall_end:
            raise self._late()

    def _late(self) -> TimeoutError:
        limits = self._limits
        if self._cpu() < self._cpu_end:
            return TimeoutError(f"did nothing for more than {limits.wall_seconds:g} s between two model calls")
        if self._cpu_end >= limits.cpu_seconds:
            return TimeoutError(f"ran for more than {limits.cpu_seconds:g} s in one episode")
        return TimeoutError(f"ran for more than {limits.seconds:g} s between two model calls")

    def _cpu(self) -> float:
        """Processor seconds that the worker has used."""
        if not self.pid:  # it has not said yet
            return 0.0
        try:
            return time.clock_gettime((~self.pid << 3) | 2)  # the clock id of a process (CPUCLOCK_SCHED)
        except OSError:  # it has ended, as the socket will say
            return 0.0

    def post_mortem(self) -> str:
        """How it ended, in words; it is killed if it has not."""
        return self._zygote.post_mortem(self._token)


def _end_worker(zygote: Zygote, token: int, sock: socket.socket) -> None:
    sock.close()
    zygote.reap(token)
