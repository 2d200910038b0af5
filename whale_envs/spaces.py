"""Gymnasium spaces for messages and completions, and for prompts as text or token ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import Space

from whale_envs.episode import Reply
from whale_envs.harness.wire import ROLES, clean


class Messages(Space[tuple[dict[str, Any], ...]]):
    """Tuples of chat messages: dicts with a `role` and a `content`, a string of any Unicode but lone surrogates."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(shape=None, dtype=None, seed=seed)

    def sample(self, mask: Any = None, probability: Any = None) -> tuple[dict[str, Any], ...]:
        """A user message with a random word."""
        return ({"role": "user", "content": _word(self)},)

    def contains(self, x: Any) -> bool:
        """Whether `x` is a tuple of messages."""
        return isinstance(x, tuple) and all(
            isinstance(m, dict) and m.get("role") in ROLES and _is_text(m.get("content")) for m in x
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


class Prompt(Space[str]):
    """A prompt as text: any Unicode but lone surrogates, of any length (`gymnasium.spaces.Text` has a charset)."""

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(shape=None, dtype=None, seed=seed)

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """A random word."""
        return _word(self)

    def contains(self, x: Any) -> bool:
        """Whether `x` is such a string."""
        return _is_text(x)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Prompt)

    def __repr__(self) -> str:
        return "Prompt()"


class TokenIds(Space[npt.NDArray[np.int64]]):
    """Token ids: int64 arrays of shape (n,), n from 0 up, each from 0 to `vocabulary` - 1."""

    def __init__(self, vocabulary: int, seed: int | None = None) -> None:
        self.vocabulary = vocabulary
        super().__init__(shape=None, dtype=None, seed=seed)

    def sample(self, mask: Any = None, probability: Any = None) -> npt.NDArray[np.int64]:
        """Up to eight random ids."""
        return self.np_random.integers(self.vocabulary, size=int(self.np_random.integers(1, 9)))

    def contains(self, x: Any) -> bool:
        """Whether `x` is a one-dimensional array of integers in the range."""
        return (
            isinstance(x, np.ndarray)
            and x.ndim == 1
            and np.issubdtype(x.dtype, np.integer)
            and bool(((x >= 0) & (x < self.vocabulary)).all())
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenIds) and other.vocabulary == self.vocabulary

    def __repr__(self) -> str:
        return f"TokenIds({self.vocabulary})"


def _is_text(x: object) -> bool:
    return isinstance(x, str) and clean(x) == x


def _word(space: Space[Any]) -> str:
    return "".join(chr(97 + c) for c in space.np_random.integers(26, size=5))
