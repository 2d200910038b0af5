"""What a proposer is: whatever reads an archive and writes new candidates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from whale_train.meta_harness.archive import Archive


class Proposal(msgspec.Struct, frozen=True):
    """A candidate that is handed in.

    `source` is a complete harness file. `hypothesis` says in a sentence or two what was changed and what that should
    do to the score, so that the result can prove it wrong. `parents` are the hashes of the archived harnesses that it
    was made from. `axes` name what was varied ("reminder", "TURNS up"), so that a later round can tell which
    directions have been tried.
    """

    source: str
    hypothesis: str
    parents: tuple[str, ...] = ()
    axes: tuple[str, ...] = ()


class Cost(msgspec.Struct, frozen=True):
    """What a proposer has used since it was made, in all of its calls, failed ones too."""

    dollars: float = 0.0
    prompt_tokens: int = 0
    sampled_tokens: int = 0

    def __add__(self, more: Cost) -> Cost:
        """What was used in both."""
        return Cost(
            self.dollars + more.dollars,
            self.prompt_tokens + more.prompt_tokens,
            self.sampled_tokens + more.sampled_tokens,
        )

    def __sub__(self, earlier: Cost) -> Cost:
        """What was used between `earlier` and now."""
        return Cost(
            self.dollars - earlier.dollars,
            self.prompt_tokens - earlier.prompt_tokens,
            self.sampled_tokens - earlier.sampled_tokens,
        )


class ProposerError(Exception):
    """A proposer could not propose this time (a service that is down, an answer that is cut off); it is asked again."""


class ProposerSpent(ProposerError):
    """A proposer has used up what one call of it may take, and has nothing to show: it is not asked again at once."""


class Proposer(Protocol):
    """Reads an archive, writes candidates.

    It may read every file under `archive.folder` and writes none of them: the search files what it returns.
    """

    @property
    def name(self) -> str:
        """How people call it."""

    @property
    def cost(self) -> Cost:
        """What it has used so far."""

    @property
    def exchanges(self) -> Sequence[str]:
        """What it has said to a service and heard so far, one JSON line an exchange, without keys; none without one."""

    def propose(self, archive: Archive, count: int, seed: int) -> list[Proposal]:
        """Up to `count` candidates for the archive's current phase (`archive.phase`, `archive.accepted`).

        `seed` is the only source of randomness: the same archive and seed give the same proposals, as far as the
        proposer can promise that. Raises `ProposerError` when it has none to give, `ProposerSpent` when it is not to be
        asked again in this round.
        """
