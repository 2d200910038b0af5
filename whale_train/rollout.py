"""Rollouts: (policy, domain, harness, tasks) to episodes. Search, training and test all come through here."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence

from whale_envs import Domain, Episode, Harness, HarnessEnv, Task
from whale_envs.episode import Failure
from whale_envs.harness.helpers import Ask
from whale_envs.harness.jail import Jail
from whale_train.policies.base import Policy, PolicyError, Request

#: Episodes that are in flight at once: with the bundled models, twice as many are no faster and hold half as much
#: memory again, half as many are a fifth slower.
CONCURRENT = 128


def episode_seed(seed: int, task_id: str, repeat: int) -> int:
    """The seed of one episode, from the run's seed, its task and which repeat it is: never from its place."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{task_id}/{repeat}".encode()).digest()[:6], "big")


def rollout(
    policy: Policy,
    domain: Domain,
    harness: Harness,
    tasks: Sequence[Task],
    split: str,
    seed: int,
    repeats: int = 1,
    progress: Callable[[int], None] = lambda done: None,
    jail: Jail | None = None,
) -> list[Episode]:
    """Play every task `repeats` times; episodes come back task by task, repeats together.

    A request that the policy cannot answer fails its own episode (owner "policy"). `progress` is called with the
    number of episodes that have just ended. `jail` is a running jail of the harness to use; without it, one that is
    not trusted gets a jail for these episodes.
    """
    own = None if harness.trusted or jail else Jail(harness)
    jail = jail or own
    todo = [(task, repeat) for task in tasks for repeat in range(repeats)]
    done: dict[tuple[str, int], Episode] = {}
    try:
        waiting = iter(todo)
        live: list[tuple[tuple[str, int], HarnessEnv, Ask]] = []
        while True:
            live += _start(waiting, CONCURRENT - len(live), domain, harness, split, seed, jail, done)
            if not live:
                break
            replies = policy.generate([_request(env, ask) for _, env, ask in live])
            still: list[tuple[tuple[str, int], HarnessEnv, Ask]] = []
            for (key, env, _), reply in zip(live, replies, strict=True):
                if isinstance(reply, PolicyError):
                    env.fail(Failure("policy", str(reply)))
                else:
                    _, _, _, _, info = env.step(reply)
                if env.done:
                    done[key] = _finished(env, policy)
                else:
                    still.append((key, env, info["ask"]))
            progress(len(live) - len(still))
            live = still
    finally:
        if own is not None:
            own.close()
    return [done[task.id, repeat] for task, repeat in todo]


def _start(
    waiting: Iterable[tuple[Task, int]],
    room: int,
    domain: Domain,
    harness: Harness,
    split: str,
    seed: int,
    jail: Jail | None,
    done: dict[tuple[str, int], Episode],
) -> list[tuple[tuple[str, int], HarnessEnv, Ask]]:
    """Start up to `room` episodes; those that end before their first ask go straight to `done`."""
    started: list[tuple[tuple[str, int], HarnessEnv, Ask]] = []
    while len(started) < room and (item := next(iter(waiting), None)) is not None:
        task, repeat = item
        env = HarnessEnv(domain, harness=harness, split=split, jail=jail)
        _, info = env.reset(seed=episode_seed(seed, task.id, repeat), options={"task": task.id})
        if info["ask"] is None:
            env.step("")
            assert env.episode is not None
            done[task.id, repeat] = env.episode
        else:
            started.append(((task.id, repeat), env, info["ask"]))
    return started


def _request(env: HarnessEnv, ask: Ask) -> Request:
    episode = env.episode
    assert episode is not None
    cap = min(ask.max_tokens or env.domain.max_tokens, env.domain.max_tokens)
    # a seed per call: the episode's, moved on by the number of calls made
    seed = (episode.seed + 7919 * len(episode.calls)) % 2**48
    return Request(ask, seed, cap, episode.calls[-1] if episode.calls else None)


def _finished(env: HarnessEnv, policy: Policy) -> Episode:
    assert env.episode is not None
    env.episode.weights = policy.weights_hash
    env.close()
    return env.episode
