"""What a candidate scores: the evaluation that a search goes by, and the shadow score that it never sees."""

from __future__ import annotations

import hashlib
import math
import statistics
import time
from pathlib import Path

from whale_envs import Domain, Episode, Harness
from whale_envs.errors import UserError
from whale_envs.task import TaskSet
from whale_train import evaluate as evaluation
from whale_train.ledger import Ledger, Spent, dollars, judge_dollars, tokens
from whale_train.meta_harness.racing import Race, stages
from whale_train.meta_harness.records import Outcome, Score, outcome
from whale_train.policies.base import Policy
from whale_train.progress import Progress
from whale_train.rollout import rollout

#: Episodes of each shadow task: there are few tasks, and one episode of each tells little of a gain of some points.
SHADOW_REPEATS = 8


def split_tasks(tasks: TaskSet, shadow: float, limit: int) -> tuple[TaskSet, TaskSet]:
    """The harness split in two: (at most `limit` tasks that a search sees, the shadow part that no proposer ever sees).

    A task's side depends on its id alone, so it is the same for every seed, cycle and run. Raises `UserError` when
    either part would be empty.
    """
    order = sorted(tasks, key=lambda t: hashlib.sha256(t.id.encode()).digest())
    cut = round(len(order) * shadow)
    if not 0 < cut < len(order):
        raise UserError(
            f"{tasks.name}: {len(order)} tasks leave none to search on or none in the shadow at a share of {shadow:g}: "
            "give more tasks or another share"
        )
    return TaskSet(order[cut:][:limit], f"{tasks.name} (search)"), TaskSet(order[:cut], f"{tasks.name} (shadow)")


def evaluate(
    policy: Policy,
    domain: Domain,
    harness: Harness,
    tasks: TaskSet,
    seed: int,
    unit: str,
    progress: Progress,
    race: Race | None = None,
) -> tuple[Score, list[Episode]]:
    """Play each task once. Every harness sees the same tasks and, task by task, the same seeds.

    In a `race` it may be dropped before it has played all tasks.

    Raises `UserError` when the policy answered nothing at all: that is no score of the harness.
    """
    start = time.perf_counter()
    episodes: list[Episode] = []
    outcomes: list[Outcome] = []
    for first, last in stages(len(tasks)) if race is not None else [(0, len(tasks))]:
        episodes += rollout(policy, domain, harness, tasks[first:last], "harness", seed, progress=progress)
        if race is not None and last < len(tasks):
            outcomes += map(outcome, episodes[first:])
            if race.lost(outcomes):
                break
    failures = [e.failure for e in episodes if e.failure and e.failure.owner == "policy"]
    if len(failures) == len(episodes):
        raise UserError(
            f"policy {policy.name} answered none of {len(episodes)} episodes ({failures[0].message}): "
            "mend it and run the same command again"
        )
    scores = [e.score for e in episodes]
    prompt, sampled = tokens(episodes)
    score = Score(
        mean=statistics.fmean(scores),
        se=statistics.pstdev(scores) / math.sqrt(len(scores)),
        n=len(scores),
        turns=statistics.fmean(len(e.calls) for e in episodes),
        unit=unit,
        prompt_tokens=prompt,
        sampled_tokens=sampled,
        seconds=round(time.perf_counter() - start, 3),
        dollars=dollars(episodes),
        dropped=len(episodes) < len(tasks),
        judge=judge_dollars(episodes),
    )
    return score, episodes


def spent(score: Score, kind: str) -> Spent:
    """The ledger's line for a score; it names the unit that played it, so that it is never counted twice."""
    counts, cost = (score.prompt_tokens, score.sampled_tokens), {"dollars": score.dollars, "judge": score.judge}
    return Spent(score.unit, kind, score.n, *counts, seconds=score.seconds, **cost)


def score_shadow(
    policy: Policy,
    domain: Domain,
    harness: Harness,
    shadow: float,
    seed: int,
    ledger: Ledger,
    progress: Progress,
    key: str,
    folder: Path,
    repeats: int = SHADOW_REPEATS,
    limit: int | None = None,
) -> evaluation.Evaluation:
    """Mean@8 (or of other `repeats`) of a harness on the first `limit` shadow tasks (all by default); result and
    episodes are kept in `folder`, which is not the archive's."""
    _, tasks = split_tasks(domain.splits.harness, shadow, limit=1)
    phase, out = f"{key} shadow", folder / f"{policy.weights_hash}-{harness.hash}"
    found, episodes = evaluation.evaluate(
        policy, domain, harness, "harness", repeats, limit, seed, progress, out, phase, part=tasks
    )
    prompt, sampled = tokens(episodes)
    ledger.add(found.spent(f"{phase} {harness.hash}", prompt, sampled))
    return found
