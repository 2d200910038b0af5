"""Rejection sampling: which episodes are trained on. Pure functions, no model, no files."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import get_args

from whale_envs import Episode
from whale_envs.errors import Owner
from whale_train.ledger import dollars, tokens
from whale_train.metrics import behaviour_rates


def accepted(episode: Episode) -> bool:
    """Whether an episode is trained on: the verifier accepts it, no call was cut off, nothing failed."""
    return episode.solved and not episode.truncated and episode.failure is None


def select(
    episodes: Sequence[Episode],
    drop_all_correct: bool = False,
    max_per_question: int | None = None,
    drop_duplicates: bool = False,
) -> list[Episode]:
    """The accepted episodes, in the order given, after what the options leave out, in this order.

    `drop_all_correct`: groups (a task's episodes) that were accepted whole, from which nothing is to be learnt.
    `drop_duplicates`: episodes whose tokens, seen and sampled, are those of an earlier one of the task.
    `max_per_question`: all but the first so many of a task. Episodes of a group differ by chance alone, so that the
    first ones are a sample without bias.
    """
    groups = _groups(episodes)
    seen: set[tuple[object, ...]] = set()
    taken: Counter[str] = Counter()
    kept = []
    for episode in episodes:
        task = episode.task_id
        if not accepted(episode) or (drop_all_correct and all(groups[task])):
            continue
        if drop_duplicates:
            if (ids := (task, *_tokens(episode))) in seen:
                continue
            seen.add(ids)
        if max_per_question is None or taken[task] < max_per_question:
            taken[task] += 1
            kept.append(episode)
    return kept


def _tokens(episode: Episode) -> list[tuple[int, ...]]:
    """The tokens of each call's prompt and of its completion."""
    return [tuple(ids or ()) for c in episode.calls for ids in (c.reply.prompt_ids, c.reply.completion_ids)]


def _groups(episodes: Sequence[Episode]) -> dict[str, list[bool]]:
    """Which of each task's episodes are accepted."""
    groups: defaultdict[str, list[bool]] = defaultdict(list)
    for episode in episodes:
        groups[episode.task_id].append(accepted(episode))
    return groups


def summarise(episodes: Sequence[Episode]) -> dict[str, float]:
    """The figures of one step's episodes, at least one, by the names under which they are logged.

    Shares are in [0, 1], a group is a task's episodes. `reward` is the mean score, `accepted` the share of episodes
    accepted, `groups/all_right` and `groups/all_wrong` the shares of groups that are accepted whole and not at all,
    `questions` the number of tasks with an episode accepted, `truncated` the share of episodes with a call cut off,
    `failures/<owner>` how many failed, `behaviours/<name>` the domain's facts, means over the episodes that state them,
    `tokens/prompt` and `tokens/sampled` those of all calls, `dollars` what a judge model cost.
    """
    groups = _groups(episodes).values()
    n = len(episodes)
    prompt, sampled = tokens(episodes)
    owners = Counter(e.failure.owner for e in episodes if e.failure is not None)
    return {
        "episodes": n,
        "reward": sum(e.score for e in episodes) / n,
        "accepted": sum(map(sum, groups)) / n,
        "groups/all_right": sum(map(all, groups)) / len(groups),
        "groups/all_wrong": sum(not any(group) for group in groups) / len(groups),
        "questions": sum(map(any, groups)),
        "truncated": sum(e.truncated for e in episodes) / n,
        **{f"failures/{owner}": owners[owner] for owner in get_args(Owner)},
        **{f"behaviours/{name}": rate for name, rate in sorted(behaviour_rates(episodes).items())},
        "tokens/prompt": prompt,
        "tokens/sampled": sampled,
        "dollars": dollars(episodes),
    }
