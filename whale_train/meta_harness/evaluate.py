"""What a candidate must pass, and what it scores: the gate (without the model), the evaluation, the shadow score."""

from __future__ import annotations

import hashlib
import math
import re
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from whale_envs import Domain, Episode, Harness, HarnessEnv, Reply
from whale_envs.episode import write_atomic, write_episodes
from whale_envs.errors import UserError
from whale_envs.harness.jail import Jail
from whale_envs.harness.load import HarnessSourceError
from whale_envs.task import TaskSet
from whale_train.ledger import Ledger, Spent, judged, tokens
from whale_train.meta_harness.archive import Archive, Score, ScoreKey, tree_hash
from whale_train.meta_harness.proposers.base import Proposal
from whale_train.policies.base import Policy
from whale_train.progress import Progress
from whale_train.rollout import rollout

#: Recorded tasks that a candidate plays at the gate.
GATE_TASKS = 3


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
    policy: Policy, domain: Domain, harness: Harness, tasks: TaskSet, seed: int, unit: str, progress: Progress
) -> tuple[Score, list[Episode]]:
    """Play each task once. Every harness sees the same tasks and, task by task, the same seeds.

    Raises `UserError` when the policy answered nothing at all: that is no score of the harness.
    """
    start = time.perf_counter()
    episodes = rollout(policy, domain, harness, tasks, "harness", seed, progress=progress.advance)
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
        dollars=judged(episodes),
    )
    return score, episodes


def spent(score: Score, kind: str) -> Spent:
    """The ledger's line for a score; it names the unit that played it, so that it is never counted twice."""
    counts = score.prompt_tokens, score.sampled_tokens
    return Spent(score.unit, kind, score.n, *counts, seconds=score.seconds, dollars=score.dollars)


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
) -> Score:
    """Score a harness on the shadow tasks, once; score and episodes are kept in `folder`, which is not the archive's.

    It measures and steers nothing, so the ledger counts it as "test".
    """
    _, tasks = split_tasks(domain.splits.harness, shadow, limit=1)
    stem = f"{re.sub(r'[^A-Za-z0-9]+', '-', key)}-{harness.hash}-{policy.weights_hash}-{seed}"
    path = folder / f"{stem}.json"
    if path.exists():
        score = msgspec.json.decode(path.read_bytes(), type=Score)
    else:
        progress.begin(f"{key} shadow", len(tasks))
        score, episodes = evaluate(policy, domain, harness, tasks, seed, f"{key} shadow {harness.hash}", progress)
        write_episodes(folder / f"{stem}.jsonl", episodes)
        write_atomic(path, msgspec.json.encode(score) + b"\n")
    ledger.add(spent(score, "test"))
    return score


def gate(
    proposal: Proposal, archive: Archive, key: ScoreKey, born: str, domain: Domain, recorded: Sequence[Episode]
) -> str:
    """Why a proposal is refused, "" when it is not. Costs a few milliseconds of CPU and no model call.

    It must parse, differ in its syntax tree from every archived candidate that was refused or has a score under `key`
    (but for what `born`, the unit at work, has filed: it may be resumed after a kill), and on the `recorded` tasks keep
    the contract twice: with the recorded replies, then with a model that says nothing. A harness that solves a task on
    silence is refused too, since that answer is not the model's; and so is one that plays every episode of a parent
    just as the parent did, since its score is known.
    """
    try:
        harness = Harness(proposal.source, name="candidate", trusted=False)
    except HarnessSourceError as error:
        return str(error)
    twin = archive.with_tree(tree_hash(proposal.source))
    if twin and twin.born != born and (twin.gate or ((scored := twin.scores.get(str(key))) and scored.unit != born)):
        return f"the same program as {twin.hash}" + (f", refused: {twin.gate}" if twin.gate else "")
    jail = Jail(harness)
    try:
        for episode in recorded:
            for replies in ([c.reply for c in episode.calls], []):
                if refused := _plays(domain, harness, jail, episode, replies):
                    return refused
        for parent in proposal.parents:
            played = archive.episodes(parent, key) if parent in archive else []
            if played and all(_same(domain, harness, jail, e) for e in played):
                return f"it changes nothing in {len(played)} recorded episodes of {parent}"
    finally:
        jail.close()
    return ""


def gate_episodes(episodes: Sequence[Episode]) -> list[Episode]:
    """The recorded episodes to gate with: one that was solved, one that was not, the longest, then the first ones."""
    solved = [e for e in episodes if e.score > 0.5]
    failed = [e for e in episodes if e.score <= 0.5]
    longest = sorted(episodes, key=lambda e: -len(e.calls))
    wanted = [*solved[:1], *failed[:1], *longest[:1], *episodes]
    unique: dict[str, Episode] = {}
    for episode in wanted:
        unique.setdefault(episode.task_id, episode)
    return list(unique.values())[:GATE_TASKS]


def _plays(domain: Domain, harness: Harness, jail: Jail, episode: Episode, replies: list[Reply]) -> str:
    """Play one recorded task with given replies, then silence; why it breaks the contract, or ""."""
    env = HarnessEnv(domain, harness=harness, split="harness", jail=jail)
    try:
        _, info = env.reset(seed=episode.seed, options={"task": episode.task_id})
        if info["ask"] is None:
            env.step("")
            assert env.episode is not None
            why = env.episode.failure.message if env.episode.failure else "it answers without asking the model"
            return f"on task {episode.task_id}: {why}"
        waiting = iter(replies)
        while not env.done:
            env.step(next(waiting, Reply("")))
        assert env.episode is not None
        if env.episode.failure:
            return f"on task {episode.task_id}: {env.episode.failure.message}"
        if not replies and env.episode.score > 0.5:
            return f"it solves task {episode.task_id} though the model says nothing"
        return ""
    finally:
        env.close()


def _same(domain: Domain, harness: Harness, jail: Jail, episode: Episode) -> bool:
    """Whether a harness asks and answers as a recorded episode does, given that episode's replies."""
    env = HarnessEnv(domain, harness=harness, split="harness", jail=jail)
    try:
        _, info = env.reset(seed=episode.seed, options={"task": episode.task_id})
        for call in episode.calls:
            ask = info["ask"]
            if ask is None or list(ask.messages) != call.messages or ask.max_tokens != call.max_tokens:
                return False
            _, _, _, _, info = env.step(call.reply)
        return env.done and env.episode is not None and env.episode.answer == episode.answer
    finally:
        env.close()
