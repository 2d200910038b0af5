"""The processes of a jail, from the side that trusts nothing: the zygote of a harness, and the worker of an episode.

What runs in them is `whale_envs.harness.jail_worker`; how they are started, confined and ended is the sandbox's affair
(`whale_envs.sandbox`). One process loads what every harness needs, once for all jails; the zygote of a harness is
forked from it.
"""

from __future__ import annotations

import functools
import os
import signal
import socket
import struct
import time
from dataclasses import dataclass
from typing import Any

from whale_envs.errors import UserError
from whale_envs.harness.load import Harness
from whale_envs.harness.wire import Channel
from whale_envs.sandbox.child import Child
from whale_envs.sandbox.launch import SandboxError, Zygote, ZygoteEnded
from whale_envs.sandbox.supervisor import Supervisor

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
    #: Wall-clock seconds for a harness's zygote or a worker to start (either takes some thousandths).
    start_seconds: float = 60.0
    #: Workers lost one after the other, no episode getting past that turn, before the harness is given up: one that
    #: loops for ever in every episode would otherwise cost `seconds` times the number of episodes.
    losses: int = 8


@functools.cache
def supervisor(hash_seed: int) -> Supervisor:
    """What the zygotes of all harnesses are forked from, in which strings hash by a seed."""
    return Supervisor("whale_envs.harness.jail_worker", {}, False, {"PYTHONHASHSEED": str(hash_seed)})


def zygote_of(harness: Harness, limits: JailLimits, hash_seed: int) -> Zygote:
    """A zygote that forks the workers of a harness. `UserError` if none can be started."""
    options = {"source": harness.source, "name": harness.name}
    try:
        return supervisor(hash_seed).using(lambda zygote: zygote.nest(options, limits.start_seconds))
    except SandboxError as error:
        raise UserError(
            f"cannot start the jail for {harness.name}: {error}; `whale doctor` says what is missing"
        ) from error


class Worker(Child):
    """The process of one episode and the frames to and from it. Raises `ZygoteEnded` when its zygote is gone."""

    def __init__(self, zygote: Zygote, name: str, limits: JailLimits) -> None:
        self._limits, self._name = limits, name
        try:
            super().__init__(zygote, limits.memory_mb, limits.cpu_seconds + 1)  # this side stops it before
        except OSError as error:
            raise UserError(
                f"cannot start an episode of {name}: {error.strerror}; each running episode takes a descriptor: "
                "allow more (ulimit -n), or run fewer at once"
            ) from None
        self._channel = Channel(self.socket.fileno())

    def start(self) -> None:
        """Wait until it can play. `UserError` if it cannot, `ZygoteEnded` if it has ended."""
        try:
            self.wait_until_ready(self._limits.start_seconds)
        except (SandboxError, TimeoutError) as error:
            self.close()
            raise UserError(f"cannot start an episode of {self._name}: {error}") from None
        self.socket.settimeout(None)
        for limit in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):  # by the kernel: a call of `poll` for each frame less
            self.socket.setsockopt(socket.SOL_SOCKET, limit, _SLICE)

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
        try:
            return time.clock_gettime((~self.pid << 3) | 2)  # the clock id of a process (CPUCLOCK_SCHED)
        except OSError:  # it has ended, as the socket will say
            return 0.0

    def ended(self) -> str:
        """How it ended, in words; it is killed if it has not."""
        try:
            exit_code = os.waitstatus_to_exitcode(self.post_mortem()[0])
        except ZygoteEnded:
            return "nobody knows how"
        return f"killed by {signal.Signals(-exit_code).name}" if exit_code < 0 else f"exit status {exit_code}"
