"""Evaluation: mean@k of (policy, harness) on a split, kept on disk with the episodes that it comes from."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from whale_envs import Domain, Episode, Harness, Task
from whale_envs.episode import read_episodes, read_json, write_atomic, write_episodes
from whale_envs.errors import UserError
from whale_envs.task import TaskSet
from whale_train.ledger import Spent, dollars, judge_dollars
from whale_train.metrics import Estimate, behaviour_rates, mean_at_k, mean_by_set, scores_by_task
from whale_train.policies.base import Policy
from whale_train.progress import Progress, Silent
from whale_train.rollout import rollout

#: Episodes played between two writes to disk: what a kill can cost.
CHUNK = 1024


class Key(msgspec.Struct, frozen=True):
    """What decides an evaluation's result. Two with the same key are the same evaluation."""

    domain: str
    verifier: str
    data: str
    split: str
    harness: str
    weights: str
    repeats: int
    limit: int | None
    seed: int


class Evaluation(msgspec.Struct, frozen=True):
    """A finished evaluation. `scores` has each task's repeats; `failures` counts failed episodes by owner; `dollars` is
    what services cost: a judge model, whose part `judge` is, and a policy behind an API. `sets` has the mean of each
    data set, where the tasks are of several."""

    key: Key
    score: Estimate
    behaviours: dict[str, float]
    scores: dict[str, list[float]]
    failures: dict[str, int]
    rollouts: int
    seconds: float
    dollars: float = 0.0
    judge: float = 0.0
    sets: dict[str, Estimate] = {}

    def summary(self) -> dict[str, object]:
        """The part that `result.json` shows: {"mean@8": x, "ci95": [low, high]}, and as "sets" the same of each data
        set, with its number of tasks, where there are several."""
        k = f"mean@{self.key.repeats}"
        sets = {name: {k: e.mean, "ci95": [e.low, e.high], "tasks": e.tasks} for name, e in self.sets.items()}
        return {k: self.score.mean, "ci95": [self.score.low, self.score.high], **({"sets": sets} if sets else {})}

    def spent(self, key: str, prompt_tokens: int = 0, sampled_tokens: int = 0) -> Spent:
        """The ledger's line for it. It measures and steers nothing, so it counts as "test"."""
        counts, cost = (prompt_tokens, sampled_tokens), {"dollars": self.dollars, "judge": self.judge}
        return Spent(key, "test", self.rollouts, *counts, seconds=self.seconds, **cost)


def evaluate(
    policy: Policy,
    domain: Domain,
    harness: Harness,
    split: str,
    repeats: int = 8,
    limit: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    folder: Path | None = None,
    phase: str | None = None,
    part: TaskSet | None = None,
) -> tuple[Evaluation, list[Episode]]:
    """Play the first `limit` tasks (all by default) of a split or of a `part` of it, `repeats` times each, and score
    them.

    With a `folder`, the result is kept there (`evaluation.json`, `episodes.jsonl`): what was played before a kill is
    not played again, and a finished evaluation with the same key is read back. `phase` is what `progress` is told.

    Raises `UserError` for a folder that holds another evaluation.
    """
    whole = domain.splits[split] if part is None else part
    tasks: Sequence[Task] = whole[:limit]
    weights = policy.weights_hash
    key = Key(domain.name, domain.verifier, whole.hash, split, harness.hash, weights, repeats, limit, seed)
    if folder is not None and (kept := load_evaluation(folder)) is not None:
        if kept.key != key:
            raise UserError(f"{folder} holds another evaluation ({_differences(kept.key, key)}): give another folder")
        if (folder / "episodes.jsonl").exists():
            return kept, _read(folder / "episodes.jsonl", kept.rollouts)
    started = time.perf_counter()
    progress = progress or Silent()
    progress.begin(phase or f"{split} set", len(tasks) * repeats)
    episodes: list[Episode] = []
    step = max(1, CHUNK // repeats)
    for first in range(0, len(tasks), step):
        chunk = tasks[first : first + step]
        piece = folder / f"part-{_hash(key)}-{first:06d}.jsonl" if folder is not None else None
        if piece is not None and piece.exists():
            episodes += _read(piece, len(chunk) * repeats)
            progress.advance(len(chunk) * repeats)
        else:
            played = rollout(policy, domain, harness, chunk, split, seed, repeats, progress)
            if piece is not None:
                write_episodes(piece, played)
            episodes += played
        progress.score(mean_at_k(scores_by_task(episodes)).mean)
    result = summarise(key, tasks, episodes, time.perf_counter() - started)
    if folder is not None:
        write_episodes(folder / "episodes.jsonl", episodes)
        write_atomic(folder / "evaluation.json", msgspec.json.format(msgspec.json.encode(result)))
        for piece in folder.glob("part-*.jsonl"):
            piece.unlink()
    return result, episodes


def summarise(key: Key, tasks: Sequence[Task], episodes: Sequence[Episode], seconds: float) -> Evaluation:
    """The evaluation that these episodes of these tasks amount to."""
    scores = scores_by_task(episodes)
    failures: dict[str, int] = {}
    for episode in episodes:
        if episode.failure is not None:
            failures[episode.failure.owner] = failures.get(episode.failure.owner, 0) + 1
    estimate, rates, spent = mean_at_k(scores), behaviour_rates(episodes), (dollars(episodes), judge_dollars(episodes))
    sets = mean_by_set(scores, {task.id: task.data_set for task in tasks})
    return Evaluation(key, estimate, rates, scores, failures, len(episodes), seconds, *spent, sets)


def load_evaluation(folder: Path) -> Evaluation | None:
    """The finished evaluation in `folder`, None if there is none. Raises `UserError` for a malformed file."""
    return read_evaluation(folder) if (folder / "evaluation.json").exists() else None


def read_evaluation(folder: Path) -> Evaluation:
    """The evaluation in `folder`, which has finished. Raises `UserError` for a malformed file."""
    return read_json(folder / "evaluation.json", Evaluation)


def _read(path: Path, expected: int) -> list[Episode]:
    episodes = list(read_episodes(path))
    if len(episodes) != expected:
        raise UserError(
            f"{path} is damaged (it holds {len(episodes)} episodes, not {expected}): remove the file, and the same "
            "command plays them again"
        )
    return episodes


def _hash(key: Key) -> str:
    return hashlib.sha256(msgspec.json.encode(key)).hexdigest()[:8]


def _differences(there: Key, here: Key) -> str:
    pairs = ((f, getattr(there, f), getattr(here, f)) for f in Key.__struct_fields__)
    return ", ".join(f"{f} {old} there, {new} here" for f, old, new in pairs if old != new)
