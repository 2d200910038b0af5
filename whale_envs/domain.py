"""What a domain is: task sets, and for each task a world that offers tools and gives the verdict."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import msgspec

from whale_envs.episode import Episode, Verdict
from whale_envs.task import Splits, Task


class World(ABC):
    """The domain's side of one episode: holds the task, offers tools, ends where the rules do, and scores.

    `tools` maps names to the functions that a harness calls as `tools.<name>(...)`. They take and return JSON
    values or the result types of `whale_envs.harness.helpers`, and raise `ToolUseError` for a misuse.
    """

    tools: dict[str, Callable[..., Any]]

    @property
    def over(self) -> bool:
        """Whether the domain's rules have ended the episode (a chess puzzle solved or failed)."""
        return False

    @abstractmethod
    def verdict(self, answer: Any) -> Verdict:
        """Score the answer that the harness returned (None: it gave none)."""

    @abstractmethod
    def behaviours(self, episode: Episode) -> dict[str, bool]:
        """Yes/no facts about a finished episode, for the logs: format followed, answer retrieved, ..."""

    @abstractmethod
    def solve(self) -> Any:
        """Play the gold solution through the tools and return its answer; the verdict on it must be 1."""

    def close(self) -> None:  # noqa: B027  (most worlds hold nothing)
        """Give back what the tools hold (a process, say): the episode has ended. May be called again."""


class Domain(ABC):
    """A domain with its data loaded. Made once, shared by many envs."""

    name: ClassVar[str]
    #: How answers are scored, by the name that the class takes as `verifier`; empty where there is one way only.
    verifier: str = ""
    #: Most tokens in one reply, and most model calls in one episode, whatever a harness asks for.
    max_tokens: int = 8192
    max_asks: int = 16
    #: Whether its tools or its verifier wait for another process (a sandbox, a server): episodes then do it together.
    waits: bool = False
    splits: Splits

    def cap(self, asked: int | None) -> int:
        """The most tokens that a reply may have when a harness asks for so many (None: it does not say)."""
        return min(asked or self.max_tokens, self.max_tokens)

    def content(self, task: Task) -> object:
        """What makes a task the one that it is, without typography: two splits share none. By default all it shows."""
        return msgspec.json.encode(task.shown, order="sorted")

    @abstractmethod
    def world(self, task: Task) -> World:
        """A fresh world for one episode of `task`."""


def format_followed(episode: Episode) -> bool:
    """Whether every reply was of use to the harness: it called a tool after it, or the last one gave the answer."""
    used = {call.after for call in episode.tool_calls if not call.error}
    last = len(episode.calls)
    return used.issuperset(range(1, last)) and (last in used or last == 0 or episode.answer is not None)
