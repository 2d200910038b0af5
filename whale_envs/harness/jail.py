"""Harnesses that are not trusted, in a child process that never holds an answer.

A `Jail` owns one worker process for one harness. It hosts many interleaved episodes, each in a namespace of its
own. Only `task.shown`, replies and tool results go in; every frame that comes out is checked as hostile. When the
worker hangs or dies, the episode that it was working on fails, and the others are restored in a new worker by
replaying what they were given, without calling a tool again.

What this does not cover: episodes of one harness share a process, so a harness that sets out to can pass notes
from one of its episodes to another.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import itertools
import os
import select
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whale_envs.errors import ToolUseError, UserError
from whale_envs.harness.helpers import Ask, ReplyView
from whale_envs.harness.load import Harness
from whale_envs.harness.namespace import ALLOWED_IMPORTS
from whale_envs.harness.session import Session, Toolbox
from whale_envs.harness.wire import MAX_FAILURE, WireError, ask_of, clean, pack, plain, receive, send
from whale_envs.sandbox.isolation import require

_WORKER = Path(__file__).with_name("jail_worker.py")


@dataclass(frozen=True)
class JailLimits:
    """What a jailed harness may use. Frames and values are bounded in `whale_envs.harness.wire`."""

    #: Processor seconds between two model calls: on a busy machine a harness is not failed for what others do.
    seconds: float = 5.0
    #: Wall-clock seconds between two model calls, tool calls not counted: for one that waits and does nothing.
    wall_seconds: float = 30.0
    #: Address space beyond what the worker needs for itself, in MiB.
    memory_mb: int = 512
    #: CPU seconds of one worker over its life: a backstop for a worker whose parent cannot stop it.
    cpu_seconds: int = 3600
    #: Wall-clock seconds for a worker to start (it takes about 0.1).
    start_seconds: float = 60.0
    #: Workers lost one after the other, no episode getting past that turn, before the harness is given up: one that
    #: loops for ever in every episode would otherwise cost `seconds` times the number of episodes.
    losses: int = 8


class Jail:
    """A worker process for one harness, started when first needed and again after it was lost.

    For one thread at a time; any number of jails may live side by side. `close` may be called again.
    """

    def __init__(self, harness: Harness, limits: JailLimits | None = None) -> None:
        self.harness = harness
        self.limits = limits or JailLimits()
        #: How many workers there have been; an episode that was begun in an earlier one has to be restored.
        self.generation = 0
        #: The turns at which workers were lost, but for those that an episode has got past since.
        self.lost_at: list[int] = []
        self._worker: _Worker | None = None

    @property
    def pid(self) -> int | None:
        """The running worker's process id."""
        return self._worker.process.pid if self._worker is not None and self._worker.alive else None

    def worker(self) -> _Worker:
        """The running worker; a new one when there is none, or it died while idle. `UserError` if none can start."""
        if self._worker is not None and not self._worker.alive:
            self.discard()
        if self._worker is None:
            self._worker = _Worker(self.harness, self.limits)
            self.generation += 1
        return self._worker

    def discard(self) -> None:
        """Kill the worker. The next use starts another."""
        if self._worker is not None:
            self._worker.end()
            self._worker = None

    def close(self) -> None:
        """End the worker."""
        self.discard()


class _Worker:
    """A running worker process and the socket to it.

    It is not put inside bubblewrap where that is to be had: it hides which files exist, and a process that serves
    one socket, with no system call left that takes a path, cannot ask that.
    """

    def __init__(self, harness: Harness, limits: JailLimits) -> None:
        setup = {
            "source": harness.source,
            "name": harness.name,
            # a word of the source, since a confined process can import nothing later
            "imports": [m for m in sorted(ALLOWED_IMPORTS) if m.partition(".")[0] in harness.source],
            "seccomp": require().seccomp.hex(),
            "memory_mb": limits.memory_mb,
            "cpu_seconds": limits.cpu_seconds,
            "parent": os.getpid(),
        }
        ours, theirs = socket.socketpair()
        # -I without -E, since one variable has to get through: set order must be the same in every worker
        argv = [sys.executable, "-s", "-P", "-S", "-B", "-W", "ignore", str(_WORKER)]
        with theirs:
            self.process = subprocess.Popen(
                [*argv, str(theirs.fileno()), *_folders()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={"PYTHONHASHSEED": "0"},
                cwd="/",
                start_new_session=True,  # a Ctrl-C at the terminal is for us
            )
        self.socket = ours
        self.limits = limits
        self._poll = select.poll()
        self._poll.register(ours, select.POLLIN)
        self._cpu_end = self._wall_end = 0.0
        self._pid = os.getpid()
        self.end = weakref.finalize(self, _end, self.process, ours, self._pid)
        deadline = time.monotonic() + limits.start_seconds
        try:
            send(ours, setup, deadline)
            frame, _ = receive(ours, deadline)
        except (TimeoutError, WireError) as error:
            status = self.status()
            self.end()
            raise UserError(f"cannot start the jail for {harness.name}: {error or 'timed out'} ({status})") from None
        if not isinstance(frame, dict) or "ready" not in frame:
            self.end()
            reason = frame.get("unfit", frame) if isinstance(frame, dict) else frame
            raise UserError(f"cannot start the jail for {harness.name}: {reason}; `whale doctor` says what is missing")

    def begin(self) -> None:
        """The limits on time count from now."""
        self._cpu_end = self.cpu() + self.limits.seconds
        self._wall_end = time.monotonic() + self.limits.wall_seconds

    def pause(self, seconds: float) -> None:
        """So many wall-clock seconds do not count."""
        self._wall_end += seconds

    def send(self, frame: Any) -> None:
        """Send a frame. `TimeoutError` past a limit, `WireError` if the worker is gone."""
        send(self.socket, frame, self._wall_end)

    def receive(self) -> tuple[Any, bytes]:
        """The next frame and its bytes. Raises as `send` does, and `WireError` for what is no frame."""
        while True:
            left = min(self._cpu_end - self.cpu(), self._wall_end - time.monotonic())
            if left <= 0:
                raise TimeoutError
            if self._poll.poll(1000 * left + 1):
                return receive(self.socket, self._wall_end)

    def cpu(self) -> float:
        """Processor seconds that the worker has used."""
        try:
            return time.clock_gettime((~self.process.pid << 3) | 2)  # the clock id of a process (CPUCLOCK_SCHED)
        except OSError:  # it has ended, as the socket will say
            return 0.0

    @property
    def alive(self) -> bool:
        """Whether it runs, and is ours (a forked copy of this process must not talk to it)."""
        return self.process.poll() is None and self._pid == os.getpid()

    def status(self) -> str:
        """How it ended, in words."""
        try:
            code = self.process.wait(1)
        except subprocess.TimeoutExpired:
            return "still running"
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"


def _folders() -> list[str]:
    """Where the worker finds what `whale_envs.sandbox.layers` imports."""
    found = [importlib.util.find_spec(name) for name in ("landlockpy", "pyseccomp")]
    origins = [Path(spec.origin) for spec in found if spec is not None and spec.origin is not None]
    return sorted({str(o.parent.parent if o.name == "__init__.py" else o.parent) for o in origins})


def _end(process: subprocess.Popen[bytes], sock: socket.socket, owner: int) -> None:
    sock.close()
    if os.getpid() == owner:
        process.kill()
        process.wait()


@dataclass
class _Turn:
    """What one resume was given and gave: enough to do it again."""

    reply: ReplyView | None
    tools: list[tuple[Any, Any]] = field(default_factory=list)  # (the call, the frame that answered it)
    outcome: bytes = b""  # digest of the frame that ended it


_OTHERWISE = "NotDeterministic: did otherwise when its process was lost and its episode was played again"


class _Broken(Exception):
    """The worker hung, died or broke the protocol; the message completes "the harness ..."."""


class JailedSession(Session):
    """An episode of an untrusted harness in a `Jail`; `shown` is what it sees of the task."""

    _ids = itertools.count()

    def __init__(self, jail: Jail, shown: dict[str, Any], toolbox: Toolbox, seed: int) -> None:
        super().__init__(toolbox)
        self._jail = jail
        self._start = {"shown": pack(shown, "a task"), "seed": seed}
        self._id = next(self._ids)
        self._generation: int | None = None
        self._turns: list[_Turn] = []
        self._ended = False

    def _run(self, reply: ReplyView | None) -> tuple[str, Any]:
        turn, number = _Turn(reply), len(self._turns)
        try:
            kind, value = self._exchange(self._restored(), turn, self._answer)
        except _Broken as broken:
            kind, value = "fail", str(broken)
            self._jail.lost_at.append(number)
            self._jail.discard()
        except BaseException:  # a tool's failure or a Ctrl-C leaves the worker in the middle of an exchange
            self._ended = True
            self._jail.discard()
            raise
        else:
            self._jail.lost_at = [lost for lost in self._jail.lost_at if lost > number]
            if kind == "fail" and value.startswith("MemoryError"):
                self._jail.discard()  # what filled it may still be held
        self._turns.append(turn)
        self._ended = kind != "ask"
        return kind, value

    def close(self) -> None:
        """See `Session.close`."""
        worker = self._jail._worker
        here = worker is not None and worker.alive and self._generation == self._jail.generation
        if here and not self._ended and self._turns:
            assert worker is not None
            try:
                worker.begin()
                worker.send({"close": self._id})
                frame, _ = worker.receive()
            except (TimeoutError, WireError):
                frame = None
            if frame != {"closed": self._id}:  # it hangs or raises in a `finally`; the others are restored elsewhere
                self._jail.discard()
        self._ended = True
        self._turns = []

    def _restored(self) -> _Worker:
        """The worker with the episode where it was, played again if the worker that it ran in is gone."""
        if len(self._jail.lost_at) >= self._jail.limits.losses:
            raise _Broken(f"GivenUp: its process hung or died {self._jail.limits.losses} times in a row")
        worker = self._jail.worker()
        if self._generation == self._jail.generation:
            return worker
        self._generation = self._jail.generation
        done, self._turns = self._turns, []
        for past in done:
            recorded = iter(past.tools)

            def answer(call: list[Any], recorded: Iterator[tuple[Any, Any]] = recorded) -> Any:
                then, result = next(recorded, (None, None))
                if then != call:
                    raise _Broken(_OTHERWISE)
                return result

            again = _Turn(past.reply)
            self._exchange(worker, again, answer)
            if again.outcome != past.outcome:
                raise _Broken(_OTHERWISE)
            self._turns.append(past)
        return worker

    def _exchange(self, worker: _Worker, turn: _Turn, answer: Callable[[list[Any]], Any]) -> tuple[str, Any]:
        """Resume the episode in the worker, answering its tool calls, until it asks, answers or fails."""
        frame: dict[str, Any] = {"id": self._id, "reply": _reply_frame(turn.reply)}
        if not self._turns:
            frame["start"] = self._start
        try:
            worker.begin()
            worker.send(frame)
            while True:
                got, data = worker.receive()
                if not (isinstance(got, dict) and len(got) == 1):
                    raise WireError("a frame without a kind")
                ((kind, value),) = got.items()
                if kind != "tool":
                    turn.outcome = hashlib.sha256(data).digest()
                    return kind, _checked(kind, value)
                call = _tool_call(value)
                called = time.monotonic()
                result = answer(call)
                worker.pause(time.monotonic() - called)
                turn.tools.append((call, result))
                worker.send(result)
        except TimeoutError:
            raise _Broken(
                f"TimeoutError: ran for more than {self._jail.limits.seconds:g} s between two model calls"
            ) from None
        except WireError as error:
            raise _Broken(f"its process ended or sent what it may not: {error} ({worker.status()})") from None

    def _answer(self, call: list[Any]) -> dict[str, Any]:
        """Call a tool for the harness: the frame that answers it."""
        try:
            return {"result": pack(self._toolbox.call(*call), "a result")}
        except ToolUseError as error:
            return {"error": str(error)}


def _reply_frame(reply: ReplyView | None) -> dict[str, Any] | None:
    if reply is None:
        return None
    return {"text": reply.text, "finish_reason": reply.finish_reason, "tool_calls": list(reply.tool_calls)}


def _tool_call(value: Any) -> list[Any]:
    """A tool call that came out of the worker, checked."""
    with contextlib.suppress(ValueError, TypeError):
        name, args, kwargs = plain(value, "a tool call")
        if isinstance(name, str) and isinstance(args, list) and isinstance(kwargs, dict):
            return [name, args, kwargs]
    raise WireError("a malformed tool call")


def _checked(kind: str, value: Any) -> Any:
    """What ended a resume in the worker, checked: an `Ask`, a JSON answer, or a failure's message."""
    try:
        if kind == "ask" and isinstance(value, list) and len(value) == 5:
            return ask_of(Ask(value[0], value[1], value[2], value[3], value[4]))
        if kind == "answer":
            return plain(value, "the answer")
        if kind == "fail" and isinstance(value, str) and len(value) <= MAX_FAILURE + 1:
            return clean(value)
    except ValueError as error:
        raise WireError(str(error)) from None
    raise WireError("a malformed frame")
