"""What a step plays: its tasks, its episodes, shared out over processes and kept on disk."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
from accelerate.utils import broadcast_object_list, gather_object

from whale_envs import Domain, Episode, Harness, HarnessEnv, Task, TaskSet, UserError, load_harness, read_episodes
from whale_train.policies.base import Policy
from whale_train.progress import Progress
from whale_train.rollout import episode_seed, rollout

HarnessLike = str | Path | Harness
#: What tells one episode of a step from all others: its task's id, its harness's hash, its seed.
Key = tuple[str, str, int]


def resolve(
    env: str | Domain | gymnasium.Env[Any, Any], harness: HarnessLike | Sequence[HarnessLike] | None
) -> tuple[Domain, list[Harness]]:
    """The domain and the harnesses that a trainer was given.

    `env` is a Gymnasium id such as "whale/Math", an env that `gymnasium.make` gave, or a `Domain`; `harness` one or
    several of what `load_harness` takes, None for the env's own. Raises `UserError` for what is none of these.
    """
    own: Harness | None = None
    if isinstance(env, str):
        try:
            env = gymnasium.make(env)
        except gymnasium.error.Error as error:
            raise UserError(f"env {env!r}: {error}; expected an id such as whale/Math") from None
    if isinstance(env, gymnasium.Env):
        found = env.unwrapped
        if not isinstance(found, HarnessEnv):
            raise UserError(f"env {env}: expected one of whale_envs, such as gymnasium.make('whale/Math')")
        own, domain = found.harness, found.domain
    elif isinstance(env, Domain):
        domain = env
    else:
        raise UserError(f"env={env!r}: expected an id such as whale/Math, an env of whale_envs, or a Domain")
    if harness is None:
        return domain, [own or load_harness("h0", domain.name)]
    given = list(harness) if isinstance(harness, list | tuple) else [harness]
    if not given or not all(isinstance(h, HarnessLike) for h in given):
        raise UserError(f"harness={harness!r}: expected a name, a path or a Harness, or a list of at least one of them")
    return domain, [load_harness(h, domain.name) for h in given]


@dataclass(frozen=True)
class Deal:
    """Which tasks a step plays: each epoch is a fresh shuffle, cut in whole steps of `prompts` tasks. `skip` steps were
    dealt before the first: those of training that was given up.

    Raises `UserError` when there are fewer tasks than one step takes.
    """

    tasks: TaskSet
    prompts: int
    seed: int
    skip: int = 0

    def __post_init__(self) -> None:
        if self.prompts > len(self.tasks):
            raise UserError(
                f"prompts={self.prompts}, but {self.tasks.name} has {len(self.tasks)} tasks: give at most as many"
            )

    @property
    def steps(self) -> int:
        """Steps in an epoch."""
        return len(self.tasks) // self.prompts

    def tasks_of(self, step: int) -> list[Task]:
        """The tasks of step number `step`, counted from 0."""
        epoch, at = self._place(step)
        return self.tasks.deal(epoch, self.seed)[at : at + self.prompts]

    def seed_of(self, step: int) -> int:
        """The step's own seed, which no other step of the run shares."""
        epoch, at = self._place(step)
        return int.from_bytes(hashlib.sha256(f"rsft/{self.seed}/{epoch}/{at}".encode()).digest()[:6], "big")

    def _place(self, step: int) -> tuple[int, int]:
        epoch, within = divmod(self.skip + step, self.steps)
        return epoch, within * self.prompts


@dataclass(frozen=True)
class Round:
    """The episodes that one step is to sample: `repeats` of each task; tasks take turns among the harnesses."""

    domain: Domain
    harnesses: Sequence[Harness]
    tasks: Sequence[Task]
    seed: int
    repeats: int

    def play(self, policy: Policy, rank: int, ranks: int, progress: Progress) -> list[Episode]:
        """Sample them, process `rank` of `ranks` its share; every process gets all, task by task.

        An episode's seed is its own, so that who samples it changes nothing.
        """
        own: list[Episode] = []
        for at, harness in enumerate(self.harnesses):
            share = self.tasks[at :: len(self.harnesses)][rank::ranks]
            if share:
                own += rollout(policy, self.domain, harness, share, "weight", self.seed, self.repeats, progress)
        played = gather_object(own) if ranks > 1 else own
        by_key = {_key(episode): episode for episode in played}
        return [by_key[key] for key in self._keys()]

    def on_disk(self, path: Path, weights: str, rank: int, ranks: int) -> list[Episode] | None:
        """The same episodes from `path`, if that file holds them, sampled by these weights; process 0 reads."""
        found = self._read(path, weights) if rank == 0 else None
        if ranks == 1:
            return found
        received: list[list[Episode] | None] = broadcast_object_list([found])
        return received[0]

    def _read(self, path: Path, weights: str) -> list[Episode] | None:
        if not path.exists():
            return None
        episodes = list(read_episodes(path))
        same = [_key(e) for e in episodes] == self._keys()
        return episodes if same and {e.weights for e in episodes} == {weights} else None

    def _keys(self) -> list[Key]:
        """The episodes by their keys, in order."""
        harnesses = itertools.cycle(h.hash for h in self.harnesses)
        dealt = list(zip(self.tasks, harnesses, strict=False))
        return [(t.id, h, episode_seed(self.seed, t.id, r)) for t, h in dealt for r in range(self.repeats)]


def _key(episode: Episode) -> Key:
    return episode.task_id, episode.harness, episode.seed
