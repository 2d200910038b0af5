"""Progress of long work, for people."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Where a phase reports what it does."""

    def begin(self, phase: str, rollouts: int) -> None:
        """A unit of work starts ("cycle 1 weights step 2/4"), which will take about this many rollouts."""

    def advance(self, rollouts: int) -> None:
        """So many rollouts have ended."""

    def score(self, mean: float) -> None:
        """The mean score of the latest rollouts, in [0, 1]."""

    def say(self, line: str) -> None:
        """A line that stays on the screen: a result, a warning."""


class Silent:
    """Reports to nobody: for tests and library use."""

    def begin(self, phase: str, rollouts: int) -> None:
        """See `Progress`."""

    def advance(self, rollouts: int) -> None:
        """See `Progress`."""

    def score(self, mean: float) -> None:
        """See `Progress`."""

    def say(self, line: str) -> None:
        """See `Progress`."""
