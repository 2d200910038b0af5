"""Gymnasium spaces for messages and completions."""

from __future__ import annotations

from typing import Any

from gymnasium import Space

from whale_envs.episode import Reply
from whale_envs.harness.wire import ROLES


class Messages(Space[tuple[dict[str, Any], ...]]):
    """Tuples of chat messages: dicts with a `role` and a `content` string of any Unicode."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(shape=None, dtype=None, seed=seed)

    def sample(self, mask: Any = None, probability: Any = None) -> tuple[dict[str, Any], ...]:
        """A user message with a random word."""
        return ({"role": "user", "content": _word(self)},)

    def contains(self, x: Any) -> bool:
        """Whether `x` is a tuple of messages."""
        return isinstance(x, tuple) and all(
            isinstance(m, dict) and m.get("role") in ROLES and isinstance(m.get("content"), str) for m in x
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Messages)

    def __repr__(self) -> str:
        return "Messages()"


class Completion(Space[Any]):
    """What a model gives back: a string, or a `whale_envs.Reply` with tool calls and finish reason."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(shape=None, dtype=None, seed=seed)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """A random word."""
        return _word(self)

    def contains(self, x: Any) -> bool:
        """Whether `x` is a string or a `Reply`."""
        return isinstance(x, str | Reply)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Completion)

    def __repr__(self) -> str:
        return "Completion()"


def _word(space: Space[Any]) -> str:
    return "".join(chr(97 + c) for c in space.np_random.integers(26, size=5))
