"""Rollouts: (policy, domain, harness, tasks) to episodes. Search, training and test all come through here."""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import islice
from typing import Any

from whale_envs import Domain, Episode, Harness, HarnessEnv, Task
from whale_envs.episode import Failure, Reply
from whale_envs.harness.helpers import Ask
from whale_envs.harness.jail import Jail
from whale_train.policies.base import Ended, Policy, PolicyError, Request
from whale_train.progress import Progress, Silent

#: Episodes that are in flight at once: with the bundled models, more are hardly faster and hold more memory, in the
#: caches of keys and values and in a process for each episode whose harness is jailed.
CONCURRENT = 64
#: Trusted episodes that are moved on at once where a domain waits for other processes (`Domain.waits`); elsewhere
#: threads cost a few percent and gain nothing. Jailed ones take turns, in a thread of their own: how many of them hang
#: in a row decides when the harness is given up.
THREADS = 16
#: While tools are at work the policy samples on for others, so many times, before it is given what they found. It is
#: not given that as soon as it is there: the same episodes are to go on together in every run, however busy a machine.
AHEAD = 2
#: Seconds that are then waited for a tool that takes longer; the others go on without it.
PATIENCE = 2.0

Key = tuple[str, int]
Playing = tuple[Key, HarnessEnv]
Asked = tuple[Playing, Ask | None]


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
    progress: Progress | None = None,
    jail: Jail | None = None,
) -> list[Episode]:
    """Play every task `repeats` times; episodes come back task by task, repeats together.

    A request that the policy cannot answer fails its own episode (owner "policy"). `progress` hears of episodes that
    have ended, and of those whose tools keep them. `jail` is a running jail of the harness to use; without it, one that
    is not trusted gets a jail for these episodes.
    """
    progress = progress or Silent()
    own = None if harness.trusted or jail else Jail(harness)
    jail = jail or own
    todo = [(task, repeat) for task in tasks for repeat in range(repeats)]
    done: dict[Key, Episode] = {}
    threads = ThreadPoolExecutor(THREADS if harness.trusted else 1) if domain.waits else None
    each: Callable[..., Iterator[Any]] = threads.map if threads else map
    sampler = policy.sampler()
    stepping = _Stepping(threads, progress)
    try:
        waiting = iter(todo)
        live: dict[int, Playing] = {}  # by the ticket of the call that is on its way

        def start(item: tuple[Task, int]) -> Asked:
            task, repeat = item
            env = HarnessEnv(domain, harness=harness, split=split, jail=jail)
            _, info = env.reset(seed=episode_seed(seed, task.id, repeat), options={"task": task.id})
            return ((task.id, repeat), env), info["ask"]

        asked: list[tuple[Playing, Ask]] = []
        told = 0
        while True:
            room = CONCURRENT - len(live) - len(asked) - len(stepping.episodes)
            asked += _fill(each, start, waiting, room, done, policy)
            progress.advance(len(done) - told)
            told = len(done)
            tickets = sampler.submit([_request(env, ask) for (_, env), ask in asked])
            live |= zip(tickets, (playing for playing, _ in asked), strict=True)
            if not live and not stepping.episodes:
                break
            ended: list[Ended] = sampler.collect() if live else []
            stepped = stepping.through([(live.pop(ticket), reply) for ticket, reply in ended], bool(live))
            asked = [(playing, ask) for playing, ask in stepped if ask is not None]
            done |= {key: _finished(env, policy) for (key, env), ask in stepped if ask is None}
    finally:
        sampler.close()
        if threads is not None:
            threads.shutdown(cancel_futures=True)
        if own is not None:
            own.close()
    return [done[task.id, repeat] for task, repeat in todo]


class _Stepping:
    """Gives replies to episodes, in `threads` if there are any, and hands the episodes on when their tools are done."""

    def __init__(self, threads: ThreadPoolExecutor | None, progress: Progress) -> None:
        self._threads, self._progress = threads, progress
        self.episodes: dict[Future[Ask | None], tuple[Playing, float]] = {}
        self._together: deque[list[Future[Ask | None]]] = deque()  # those that got their replies at one time
        self._due: list[Future[Ask | None]] = []  # handed on as soon as they are done

    def through(self, replies: list[tuple[Playing, Reply | PolicyError]], others: bool) -> list[Asked]:
        """Give replies, and return the episodes that got theirs `AHEAD` times ago, in their order, and what was late
        before; sooner if there are no `others` that the policy could go on with.

        Those that then take longer than `PATIENCE` are late.
        """
        if self._threads is None:
            return [(playing, _step(playing[1], reply)) for playing, reply in replies]
        now = time.monotonic()
        new = {self._threads.submit(_step, playing[1], reply): (playing, now) for playing, reply in replies}
        self.episodes |= new
        self._together.append(list(new))
        while self._together and (len(self._together) > AHEAD or not others):
            due = self._together.popleft()
            if late := wait(due, PATIENCE).not_done:
                self._tell(late)
            self._due += due
            others = others or len(late) < len(due)
        if not others and self._due:
            wait(self._due, return_when=FIRST_COMPLETED)
        done = [step for step in self._due if step.done()]
        self._due = [step for step in self._due if not step.done()]
        return [(self.episodes.pop(step)[0], step.result()) for step in done]

    def _tell(self, late: set[Future[Ask | None]]) -> None:
        # some of them may have ended meanwhile
        at_work = [*late, *(step for step in self._due if not step.done())]
        (key, _), since = min((self.episodes[step] for step in at_work), key=lambda e: e[1])
        self._progress.say(
            f"{len(late)} of the episodes wait for their tools (that of task {key[0]} longest, "
            f"{time.monotonic() - since:.0f} s); the others go on"
        )


def _fill(
    each: Callable[..., Iterator[Any]],
    start: Callable[[tuple[Task, int]], Asked],
    waiting: Iterator[tuple[Task, int]],
    room: int,
    done: dict[Key, Episode],
    policy: Policy,
) -> list[tuple[Playing, Ask]]:
    """Start up to `room` episodes; those that end before their first ask go straight to `done`."""
    started: list[tuple[Playing, Ask]] = []
    while items := list(islice(waiting, room - len(started))):
        for (key, env), ask in each(start, items):
            if ask is None:
                env.step("")
                done[key] = _finished(env, policy)
            else:
                started.append(((key, env), ask))
    return started


def _step(env: HarnessEnv, reply: Reply | PolicyError) -> Ask | None:
    """Give an episode its reply; its next ask, or None at its end."""
    if isinstance(reply, PolicyError):
        env.fail(Failure("policy", str(reply)))
        return None
    _, _, _, _, info = env.step(reply)
    ask: Ask | None = info["ask"]
    return ask


def _request(env: HarnessEnv, ask: Ask) -> Request:
    episode = env.episode
    assert episode is not None
    # a seed per call: the episode's, moved on by the number of calls made
    seed = (episode.seed + 7919 * len(episode.calls)) % 2**48
    return Request(ask, seed, env.domain.cap(ask.max_tokens), episode.calls[-1] if episode.calls else None)


def _finished(env: HarnessEnv, policy: Policy) -> Episode:
    assert env.episode is not None
    env.episode.weights = policy.weights_hash
    env.close()
    return env.episode
