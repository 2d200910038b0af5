"""Harnesses that are not trusted, each episode in a child process of its own that never holds an answer.

A `Jail` owns a zygote for one harness: a clean process with the harness compiled, that forks a confined worker for
each episode (`whale_envs.sandbox`; what a worker does is `whale_envs.harness.jail_worker`). Only `task.shown`, replies
and tool results go in; every frame that comes out is checked as hostile. A worker that hangs or dies takes its own
episode along and no other, and what an episode leaves in memory ends with it: there is nowhere to leave a note for
another one.

What this does not cover: an episode can measure time, and so how busy the machine is.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from typing import Any

from whale_envs.errors import ToolUseError, UserError
from whale_envs.harness.helpers import Message, ReplyView
from whale_envs.harness.jail_process import JailLimits, Worker, zygote_of
from whale_envs.harness.load import Harness
from whale_envs.harness.session import Session, Toolbox
from whale_envs.harness.wire import MAX_FAILURE, Gone, WireError, ask_from, clean, pack, plain
from whale_envs.sandbox.launch import Zygote, ZygoteEnded

__all__ = ["Jail", "JailLimits", "JailedSession"]

#: Workers that are forked ahead.
SPARE = 8


class Jail:
    """What the episodes of one harness are forked from: started when first needed, again should it end.

    Any thread may start episodes; each episode is for one thread at a time. `close` may be called again. `hash_seed`
    decides how strings hash, and so the order of their sets: another one shows whether a harness depends on that.
    """

    def __init__(self, harness: Harness, limits: JailLimits | None = None, hash_seed: int = 0) -> None:
        self.harness = harness
        self.limits = limits or JailLimits()
        #: The turns at which workers were lost, but for those that an episode has got past since.
        self.lost_at: list[int] = []
        self._hash_seed = hash_seed
        self._zygote: Zygote | None = None
        self._spare: deque[Worker] = deque()
        self._started = 0
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """The running zygote's process id."""
        return self._zygote.pid if self._zygote is not None and not self._zygote.ended else None

    def worker(self) -> Worker:
        """A new process for one episode. `UserError` if none can start."""
        for _ in range(SPARE + 2):
            with contextlib.suppress(ZygoteEnded):  # the zygote or a spare was killed from outside: the next, then
                worker = self._next()
                worker.start()
                return worker
        raise UserError(f"cannot start an episode of {self.harness.name}: its process is killed again and again")

    def _next(self) -> Worker:
        """The worker that has been starting for longest."""
        with self._lock:
            if self._zygote is not None and self._zygote.ended:
                self._end()
            if self._zygote is None:
                self._zygote = zygote_of(self.harness, self.limits, self._hash_seed)
            self._started += 1
            self._fork(1)
            return self._spare.popleft()

    def fork_ahead(self) -> None:
        """Have workers forked for the episodes to come, now that the one that has begun waits for the model.

        A fork costs milliseconds of processor time, most of it for pages that the child writes. A jail for a few
        episodes forks few ahead.
        """
        with self._lock, contextlib.suppress(ZygoteEnded):  # which the next episode will see to
            self._fork(min(self._started, SPARE))

    def _fork(self, spare: int) -> None:
        try:
            while self._zygote is not None and len(self._spare) < spare:
                self._spare.append(Worker(self._zygote, self.harness.name, self.limits))
        except ZygoteEnded:
            self._end()
            raise

    def _end(self) -> None:
        while self._spare:
            self._spare.pop().close()
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None

    def close(self) -> None:
        """End the zygote and all episodes."""
        with self._lock:
            self._end()


class _Broken(Exception):
    """The worker hung, died or broke the protocol; the message completes "the harness ..."."""


class JailedSession(Session):
    """An episode of an untrusted harness in a `Jail`; `shown` is what it sees of the task."""

    def __init__(self, jail: Jail, shown: dict[str, Any], toolbox: Toolbox, seed: int) -> None:
        super().__init__(toolbox)
        self._jail = jail
        self._start = {"shown": pack(shown, "a task"), "seed": seed}
        self._worker: Worker | None = None
        self._turn = 0
        self._messages: list[Message] = []  # of the last ask
        self._chars = 0  # what they count

    @property
    def pid(self) -> int | None:
        """The process id of the episode's worker, None when it has none."""
        return self._worker.pid if self._worker is not None else None

    def _run(self, reply: ReplyView | None) -> tuple[str, Any]:
        try:
            kind, value = self._exchange(reply)
        except _Broken as broken:
            kind, value = "fail", str(broken)
            self._jail.lost_at.append(self._turn)
        except BaseException:  # a tool's failure or a Ctrl-C leaves the worker in the middle of an exchange
            self.close()
            raise
        else:
            self._jail.lost_at = [lost for lost in self._jail.lost_at if lost > self._turn]
        if self._turn == 0:
            self._jail.fork_ahead()
        self._turn += 1
        if kind != "ask":
            self.close()
        return kind, value

    def close(self) -> None:
        """See `Session.close`. The generator's `finally` blocks do not run: what they would do is dropped anyway."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def _exchange(self, reply: ReplyView | None) -> tuple[str, Any]:
        """Resume the episode in its worker, answering its tool calls, until it asks, answers or fails."""
        if len(self._jail.lost_at) >= self._jail.limits.losses:
            raise _Broken(f"GivenUp: its process hung or died {self._jail.limits.losses} times in a row")
        worker = self._worker
        if reply is None:
            worker = self._worker = self._jail.worker()
        assert worker is not None, "resumed after its end"
        try:
            worker.begin()
            worker.send(self._start if reply is None else [reply.text, reply.finish_reason, list(reply.tool_calls)])
            while True:
                got = worker.receive()
                if not (isinstance(got, dict) and len(got) == 1):
                    raise WireError("a frame without a kind")
                ((kind, value),) = got.items()
                if kind != "tool":
                    return kind, self._checked(kind, value)
                call = _tool_call(value)
                called = time.monotonic()
                result = self._answer(call)
                worker.pause(time.monotonic() - called)
                worker.send(result)
        except TimeoutError as error:
            raise _Broken(f"TimeoutError: {error}") from None
        except Gone:
            raise _Broken(f"its process ended ({worker.ended()})") from None
        except WireError as error:
            raise _Broken(f"sent what it may not: {error}") from None

    def _checked(self, kind: str, value: Any) -> Any:
        """What ended a resume in the worker, checked: an `Ask`, a JSON answer, or a failure's message."""
        try:
            if kind == "ask":
                ask, self._chars = ask_from(value, self._messages, self._chars)
                self._messages = [dict(message) for message in ask.messages]  # a caller may change those
                return ask
            if kind == "answer":
                return plain(value, "the answer")
            if kind == "fail" and isinstance(value, str) and len(value) <= MAX_FAILURE + 1:
                return clean(value)
        except ValueError as error:
            raise WireError(str(error)) from None
        raise WireError("a malformed frame")

    def _answer(self, call: list[Any]) -> dict[str, Any]:
        """Call a tool for the harness: the frame that answers it."""
        try:
            return {"result": pack(self._toolbox.call(*call), "a result")}
        except ToolUseError as error:
            return {"error": str(error)}


def _tool_call(value: Any) -> list[Any]:
    """A tool call that came out of the worker, checked."""
    with contextlib.suppress(ValueError, TypeError):
        name, args, kwargs = plain(value, "a tool call")
        if isinstance(name, str) and isinstance(args, list) and isinstance(kwargs, dict):
            return [name, args, kwargs]
    raise WireError("a malformed tool call")
