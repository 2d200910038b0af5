"""What an archive keeps (`whale_train.meta_harness.archive`): candidates, their scores and outcomes, and rounds."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Literal

import msgspec

from whale_envs import Episode
from whale_envs.episode import SOLVED
from whale_train.meta_harness.proposers.base import Cost, Proposal

#: What of a harness a proposer may edit: all of it, or the text of its strings.
Edits = Literal["all", "prompt-only"]


class ScoreKey(msgspec.Struct, frozen=True):
    """Under what a harness was scored: the policy's weights hash (sampling is in it), the tasks' hash, the seed."""

    weights: str
    data: str
    seed: int

    def __str__(self) -> str:
        return f"{self.weights}-{self.data}-{self.seed}"

    @classmethod
    def named(cls, name: str) -> ScoreKey:
        """The key that is written like this. Raises `ValueError` for what is none."""
        weights, data, seed = name.rsplit("-", 2)
        return cls(weights, data, int(seed))


class Score(msgspec.Struct, frozen=True):
    """How a harness did on `n` tasks, one episode each: the mean of the verdicts with its standard error.

    `turns` is the mean number of model calls. `unit` is the ledger key under which the rollouts were paid, `dollars`
    what services cost, `judge` a judge model's part of that. `dropped`: it lost a race before it had played all tasks,
    and its mean is over those that it played; it is compared with no other mean.
    """

    mean: float
    se: float
    n: int
    turns: float
    unit: str
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    seconds: float = 0.0
    dollars: float = 0.0
    dropped: bool = False
    judge: float = 0.0


class Outcome(msgspec.Struct, frozen=True):
    """What came of one task: the verdict's score and reason, the number of model calls, who failed if anybody did, and
    a hash of replies and answer, by which harnesses are known that make no difference to the model."""

    key: str
    task: str
    score: float
    reason: str
    turns: int
    failed: str = ""
    said: str = ""

    @property
    def solved(self) -> bool:
        """See `Episode.solved`."""
        return self.score > SOLVED


class Candidate(msgspec.Struct):
    """A harness in the archive. `gate` is why it was refused ("": it was not); `tree` is its normalised syntax tree."""

    hash: str
    tree: str
    hypothesis: str
    parents: list[str]
    axes: list[str]
    born: str
    gate: str = ""
    scores: dict[str, Score] = {}

    def __post_init__(self) -> None:
        for name in self.scores:
            try:
                ScoreKey.named(name)
            except ValueError:
                raise ValueError(f"a score under {name!r}, expected WEIGHTS-DATA-SEED") from None


class Tried(msgspec.Struct, frozen=True):
    """One proposal of a round and what came of it: `gate` is why it was refused ("": it was not), `mean` its score,
    None when it was refused before it played."""

    hash: str
    hypothesis: str
    gate: str
    mean: float | None


class Round(msgspec.Struct, frozen=True):
    """A finished round of a phase. `note` says what went wrong with the proposer, if anything did.

    `optimism` is by how much the highest mean so far is expected to be too high, `confirmed` the accepted harness's
    mean under fresh seeds, None where it has not played with them.
    """

    phase: str
    round: int
    tried: list[Tried]
    accepted: str
    accepted_mean: float
    note: str = ""
    optimism: float = 0.0
    confirmed: float | None = None


class Proposals(msgspec.Struct, frozen=True):
    """What a proposer handed in for a round, what that cost, and what went wrong, if anything did."""

    proposals: list[Proposal]
    cost: Cost
    seconds: float
    note: str = ""


class Phase(msgspec.Struct, frozen=True, omit_defaults=True):
    """The search that goes on, or was the last to: its key in the run, what its harnesses are scored under, and what
    of a harness may be edited (see `whale_train.meta_harness.prompt_only`)."""

    key: str
    score_key: ScoreKey
    edits: Edits = "all"


def last_rounds(rounds: Iterable[Round]) -> list[Round]:
    """The last round of each phase, in order: where the phase has come to."""
    return list({done.phase: done for done in rounds}.values())


def outcome(episode: Episode, key: ScoreKey | None = None) -> Outcome:
    """What an archive keeps of an episode in a line."""
    failed = episode.failure.owner if episode.failure else ""
    heard = msgspec.json.encode([[call.reply.text for call in episode.calls], episode.answer])
    said = hashlib.sha256(heard).hexdigest()[:12]
    return Outcome(
        str(key or ""), episode.task_id, episode.score, episode.verdict.reason, len(episode.calls), failed, said
    )
