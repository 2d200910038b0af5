"""A policy without a model: replies come from a function or a list. Ships with the library, for tests."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

from whale_envs.episode import Reply
from whale_train.policies.base import AtOnce, Policy, PolicyError, Request

Script = Callable[[Request], str | Reply | PolicyError]


class ScriptedPolicy(Policy):
    """Answers each request with `script(request)`, or with the next of a list of replies.

    A string stands for a `Reply` that ended by itself; a `PolicyError` returned or raised by the function fails
    its own request. A list that has run out gives a `PolicyError`; any other exception of the function propagates.
    `requests` keeps every request that was made.
    """

    def __init__(self, script: Script | Iterable[str | Reply], name: str = "scripted") -> None:
        self.name = name
        self.requests: list[Request] = []
        self._script = script if callable(script) else _in_order(script)

    @property
    def weights_hash(self) -> str:
        """A hash of the policy's name: its replies are decided by code."""
        return hashlib.sha256(self.name.encode()).hexdigest()[:12]

    def sampler(self) -> AtOnce:
        """See `Policy.sampler`."""
        return AtOnce(self._answers)

    def _answers(self, requests: list[Request]) -> list[Reply | PolicyError]:
        self.requests += requests
        return [self._answer(request) for request in requests]

    def _answer(self, request: Request) -> Reply | PolicyError:
        try:
            reply = self._script(request)
        except PolicyError as error:
            return error
        return Reply(reply) if isinstance(reply, str) else reply


def _in_order(replies: Iterable[str | Reply]) -> Callable[[Request], str | Reply]:
    waiting = iter(replies)

    def script(request: Request) -> str | Reply:
        for reply in waiting:
            return reply
        raise PolicyError("the script has no reply left: give the ScriptedPolicy a longer list")

    return script
