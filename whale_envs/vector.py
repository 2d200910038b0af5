"""Many episodes side by side, with Gymnasium's vector interface: `gym.make_vec("whale/SearchQA", num_envs=64)`.

The sub-environments are `HarnessEnv`s that share one domain, one deal of tasks and, for a harness that is not trusted,
one jail. Gymnasium's own `SyncVectorEnv` and `AsyncVectorEnv` work with `HarnessEnv` too (the latter with
`shared_memory=False`), where each sub-environment deals for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from whale_envs.domain import Domain
from whale_envs.env import HarnessEnv, Observation, as_domain, as_reply
from whale_envs.episode import Reply
from whale_envs.errors import UserError, unknown
from whale_envs.harness.jail import Jail
from whale_envs.harness.load import Harness, load_harness

Observations = tuple[Observation, ...]
Flags = npt.NDArray[np.bool_]
#: Each sub-environment's info, None where it has none.
Infos = list[dict[str, Any] | None]
_MODES = {mode.value: mode for mode in (AutoresetMode.SAME_STEP, AutoresetMode.DISABLED)}


class HarnessVectorEnv(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """`num_envs` episodes at a time. Observations are a tuple of `HarnessEnv`'s, actions a sequence of its actions.

    Tasks are dealt in one order for all: each once before any comes again, shuffled by the seed of `reset`; an episode
    that ends makes room for the next task of the order. So the episodes follow from seed and replies alone, and each of
    them can be had by itself: `HarnessEnv.reset(seed=record.seed, options={"task": record.task_id})`.

    `infos` has `HarnessEnv`'s entries as arrays of length `num_envs`, with masks, as Gymnasium's vector envs do.

    Args:
        num_envs: how many episodes at a time.
        domain, dataset, harness, split, jail, render_mode, verifier, max_asks: as for `HarnessEnv`.
        autoreset_mode: AutoresetMode.SAME_STEP (or "SameStep"): the step that ends an episode returns the first ask of
            the next one, the ended one's info is in `infos["final_info"]`; AutoresetMode.DISABLED (or "Disabled"):
            call `reset(options={"reset_mask": mask})` for those that have ended before the next step.
        max_episode_steps: the same limit as `max_asks`, by the name under which `gymnasium.make_vec` knows it.

    Raises `UserError` for arguments that cannot be used, NEXT_STEP autoreset among them: it swallows a completion.
    """

    def __init__(
        self,
        num_envs: int,
        domain: str | Domain,
        dataset: str | Path | None = None,
        harness: str | Path | Harness = "h0",
        split: str = "weight",
        jail: Jail | None = None,
        render_mode: str | None = None,
        verifier: str | None = None,
        max_asks: int | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
        max_episode_steps: int | None = None,
    ) -> None:
        mode = autoreset_mode.value if isinstance(autoreset_mode, AutoresetMode) else autoreset_mode
        if mode not in _MODES:
            raise unknown("autoreset mode", mode, _MODES)
        for name, count in (("num_envs", num_envs), ("max_asks", max_asks), ("max_episode_steps", max_episode_steps)):
            if (count is not None or name == "num_envs") and (type(count) is not int or count < 1):
                raise UserError(f"{name} is {count!r}: expected a whole number from 1 up")
        limits = [limit for limit in (max_asks, max_episode_steps) if limit is not None]
        super().__init__()
        domain = as_domain(domain, dataset, verifier)
        harness = load_harness(harness, domain.name)
        self._own_jail = None if jail is not None or harness.trusted else Jail(harness)
        kwargs: dict[str, Any] = {"jail": jail or self._own_jail, "render_mode": render_mode}
        kwargs["max_asks"] = min(limits, default=None)
        self.envs = [HarnessEnv(domain, harness=harness, split=split, **kwargs) for _ in range(num_envs)]
        self.num_envs = num_envs
        self.tasks = domain.splits[split]
        self.render_mode = render_mode
        self.autoreset_mode = _MODES[mode]
        self.metadata = {**HarnessEnv.metadata, "autoreset_mode": self.autoreset_mode}
        self.single_observation_space = self.envs[0].observation_space
        self.single_action_space = self.envs[0].action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._observations: list[Observation] = [()] * num_envs
        self._order: list[int] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, dict[str, Any]]:
        """Begin new episodes, all or those of `options["reset_mask"]` (a boolean array of shape (num_envs,)).

        A seed starts the deal anew; without one it goes on. Raises `UserError` for other options or another mask.
        """
        super().reset(seed=seed)
        if seed is not None:
            self._order = []
        infos: Infos = [None] * self.num_envs
        for at in self._to_reset(options or {}):
            self._observations[at], infos[at] = self._begin(at)
        return tuple(self._observations), stacked(infos)

    def step(
        self, actions: Sequence[str | Reply]
    ) -> tuple[Observations, npt.NDArray[np.float64], Flags, Flags, dict[str, Any]]:
        """Give each episode its reply. Returns (observations, rewards, terminations, truncations, infos).

        Raises `UserError`, and steps none of them, for a wrong number of actions or one that is no completion, and when
        an episode has ended and was not reset.
        """
        if not isinstance(actions, Sequence | np.ndarray) or isinstance(actions, str):
            raise UserError(f"actions are a list of {self.num_envs} actions, not a {type(actions).__name__}")
        if len(actions) != self.num_envs:
            raise UserError(f"{len(actions)} actions for {self.num_envs} environments: give one a piece")
        ended = [at for at, env in enumerate(self.envs) if env.done]
        if ended:
            raise UserError(
                f"episodes {ended} have ended: call reset(options={{'reset_mask': mask}}) for them before step()"
            )
        replies = [as_reply(action) for action in actions]  # all, before any episode goes on
        rewards = np.zeros(self.num_envs)
        terminations, truncations = np.zeros(self.num_envs, np.bool_), np.zeros(self.num_envs, np.bool_)
        infos: Infos = [None] * self.num_envs
        finals: Infos = [None] * self.num_envs
        for at, (env, reply) in enumerate(zip(self.envs, replies, strict=True)):
            self._observations[at], rewards[at], terminations[at], truncations[at], infos[at] = env.step(reply)
            if env.done and self.autoreset_mode == AutoresetMode.SAME_STEP:
                finals[at] = {"final_obs": self._observations[at], "final_info": infos[at]}
                self._observations[at], infos[at] = self._begin(at)
        return tuple(self._observations), rewards, terminations, truncations, stacked(infos) | stacked(finals)

    def render(self) -> tuple[str, ...] | None:
        """What each sub-environment renders; None where they print it."""
        rendered = [env.render() for env in self.envs]
        return tuple(text for text in rendered if text is not None) or None

    def close_extras(self, **kwargs: Any) -> None:
        """Close the sub-environments and the jail that was started for them."""
        for env in self.envs:
            env.close()
        if self._own_jail is not None:
            self._own_jail.close()

    def _begin(self, at: int) -> tuple[Observation, dict[str, Any]]:
        """Deal the next task to a sub-environment."""
        if not self._order:
            self._order = self.np_random.permutation(len(self.tasks)).tolist()
        task = self.tasks[self._order.pop()]
        return self.envs[at].begin(task, int(self.np_random.integers(2**31)))

    def _to_reset(self, options: dict[str, Any]) -> Iterable[int]:
        for option in options:
            if option != "reset_mask":
                raise unknown("reset option", option, ["reset_mask"])
        mask = options.get("reset_mask", np.ones(self.num_envs, np.bool_))
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (self.num_envs,):
            raise UserError(f"reset_mask is {mask!r:.80}: expected a boolean array of shape ({self.num_envs},)")
        return (int(at) for at in np.flatnonzero(mask))


def stacked(infos: Infos) -> dict[str, Any]:
    """Infos by environment as arrays by key, each with its mask: what `VectorEnv._add_info` makes of them, faster."""
    stack: dict[str, Any] = {}
    for key in dict.fromkeys(key for info in infos if info for key in info):
        rows = {at: info[key] for at, info in enumerate(infos) if info and key in info}
        first = next(iter(rows.values()))
        mask = np.zeros(len(infos), np.bool_)
        mask[list(rows)] = True
        if isinstance(first, dict):
            stack[key] = stacked([rows.get(at) for at in range(len(infos))])
        else:
            kind = type(first) if type(first) in (bool, int, float) else object
            stack[key] = np.full(len(infos), None if kind is object else 0, kind)
            for at, value in rows.items():
                stack[key][at] = value
        stack[f"_{key}"] = mask
    return stack
