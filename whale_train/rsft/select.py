"""Rejection sampling: which episodes are trained on. Pure functions, no model, no files."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import msgspec

from whale_envs import Episode

#: An episode is accepted when its score is above this (paper, section on RSFT).
ACCEPT = 0.5


def accepted(episode: Episode) -> bool:
    """Whether an episode is trained on: the verifier accepts it, no call was cut off, nothing failed."""
    return episode.score > ACCEPT and not episode.truncated and episode.failure is None


def select(episodes: Sequence[Episode]) -> list[Episode]:
    """The accepted episodes, in the order given."""
    return [episode for episode in episodes if accepted(episode)]


class Summary(msgspec.Struct, frozen=True):
    """One step's episodes in figures; shares are in [0, 1], a group is a task's episodes.

    `reward` is the mean score, `accepted` the share of episodes kept, `groups_right` and `groups_wrong` the shares
    of groups that are kept whole and not at all, `questions` the number of tasks with an episode kept, `truncated`
    the share of episodes with a call cut off, `failures` how many failed by owner, `behaviours` the domain's facts
    as means over the episodes that have them.
    """

    episodes: int
    reward: float
    accepted: float
    groups_right: float
    groups_wrong: float
    questions: int
    truncated: float
    failures: dict[str, int]
    behaviours: dict[str, float]


def summarise(episodes: Sequence[Episode]) -> Summary:
    """The figures of one step's episodes, at least one."""
    groups: defaultdict[str, list[bool]] = defaultdict(list)
    facts: defaultdict[str, list[bool]] = defaultdict(list)
    for episode in episodes:
        groups[episode.task_id].append(accepted(episode))
        for name, holds in episode.behaviours.items():
            facts[name].append(holds)
    n = len(episodes)
    return Summary(
        episodes=n,
        reward=sum(e.score for e in episodes) / n,
        accepted=sum(sum(group) for group in groups.values()) / n,
        groups_right=sum(all(group) for group in groups.values()) / len(groups),
        groups_wrong=sum(not any(group) for group in groups.values()) / len(groups),
        questions=sum(any(group) for group in groups.values()),
        truncated=sum(e.truncated for e in episodes) / n,
        failures=dict(Counter(e.failure.owner for e in episodes if e.failure is not None)),
        behaviours={name: sum(holds) / len(holds) for name, holds in sorted(facts.items())},
    )
