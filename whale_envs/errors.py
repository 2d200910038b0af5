"""The error model: every failure has an owner, and people read the message.

Three kinds, and no others:

- `UserError`: somebody gave us something that we cannot use. The command line prints its one line and exits
  with 2; it never shows a traceback.
- `EpisodeError`: an episode failed. It is data (see `whale_envs.episode.Failure`): the episode scores 0, keeps
  what it cost, and stops nothing else.
- anything else is a bug of ours, and propagates.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Literal

Owner = Literal["model", "harness", "tool", "policy", "task", "verifier"]


class UserError(Exception):
    """A mistake in what the user gave: says what was given, what was expected, and what to do."""


class EpisodeError(Exception):
    """A failure inside one episode, with the part that caused it as its owner, and the dollars that it cost."""

    def __init__(self, owner: Owner, message: str, dollars: float = 0.0) -> None:
        super().__init__(message)
        self.owner: Owner = owner
        self.dollars = dollars

    def __reduce__(self) -> tuple[type[EpisodeError], tuple[Owner, str, float]]:
        # pickled as it is made: a pool of processes waits for ever for an error that it cannot unpickle
        return type(self), (self.owner, str(self), self.dollars)


class ToolUseError(ValueError):
    """A harness called a tool in a way that the tool does not offer; the harness may catch it."""


def unknown(what: str, given: object, known: Iterable[str]) -> UserError:
    """A `UserError` for a name that is not one of `known`, with the nearest ones first."""
    names = sorted(known)
    near = difflib.get_close_matches(str(given), names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return UserError(f"unknown {what} {given!r}: expected one of {', '.join(names)}{hint}")
