"""The contract of an environment, as a check that anyone may run on a domain or a harness of their own.

from whale_envs.contract import check_env_contract
check_env_contract("whale/SearchQA", "my_harness.py")
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import gymnasium
import msgspec

from whale_envs.domain import Domain, World
from whale_envs.domains import load_domain
from whale_envs.env import HarnessEnv, Observation
from whale_envs.episode import Episode, Reply
from whale_envs.errors import EpisodeError, ToolUseError, UserError
from whale_envs.harness.load import Harness, load_harness
from whale_envs.harness.session import Toolbox
from whale_envs.task import SPLITS, Task

#: Replies that a model might give: forms that the domains use, and text that breaks careless parsers.
REPLIES = (
    "",
    "I do not know.",
    "<search>who is who</search>",
    "<answer>42</answer>",
    "```python\nprint(6 * 7)\n```",
    r"So \boxed{42}",
    "<move>e2e4</move>",
    "<move>0-0-0-0</move> <answer></answer> \\boxed{",
    "<answer><answer></answer></search><search>",
    "\x00\x1b[2J\u202e\ufeff\r\n\u2028",
    "\ud800 half a pair \udfff",
    "👩‍👩‍👧‍👦 שלום ﷽ Ⅷ ٣",
    "a" * 20_000,
)
#: Answers that are right for no task.
WRONG: tuple[Any, ...] = (
    None,
    "",
    "no such answer",
    -1,
    0.5,
    True,
    [],
    ["no"],
    {"answer": None},
    "\u202e",
    "9" * 5_000,
    10**300,
)
#: Arguments that a harness might call a tool with.
ARGUMENTS: tuple[tuple[list[Any], dict[str, Any]], ...] = (
    ([], {}),
    ([None], {}),
    ([""], {}),
    (["\x00"], {}),
    ([-1, 10**30], {}),
    ([["a"], {"b": 1.5}], {}),
    (["a", "b", "c", "d", "e"], {}),
    (["a"], {"k": "many"}),
    (["a"], {"no_such_argument": 1}),
)


#: The replies of an episode, by its seed.
Model = Callable[[int], Iterator[str | Reply]]
T = TypeVar("T", HarnessEnv, World)


class ContractError(AssertionError):
    """An environment breaks its contract; the message says which part, for which task and harness."""


def check_env_contract(
    env: str | Domain,
    harness: str | Path | Harness = "h0",
    *,
    tasks: int = 3,
    episodes: int = 4,
    seed: int = 0,
    model: Model | None = None,
) -> None:
    """Check a domain with a harness: raises `ContractError` for the first promise that is not kept.

    Episodes: the same seed and replies give the same record, jailed or not; observations and actions are in their
    spaces whatever the model replies; a record survives JSON; a finished env says so; `close` may be repeated.
    Worlds: the gold solution scores 1 and a wrong answer 0; scoring and tools raise nothing but what they declare; no
    two splits share content (see `Domain.content`).

    Args:
        env: a Gymnasium id ("whale/SearchQA"), a domain's name, or a `Domain`.
        harness: anything that `HarnessEnv` takes.
        tasks: how many tasks of each split have their world checked.
        episodes: how many episodes are played, each with replies of its own.
        seed: which tasks and replies are taken.
        model: the replies of an episode, by its seed; by default `replies`, which makes any parser stumble.
    """
    model = model or replies
    domain = _domain(env)
    program = load_harness(harness, domain.name)
    _check_splits(domain)
    for split in SPLITS:
        for task in domain.splits[split].deal(0, seed)[:tasks]:
            _check_world(domain, task)
    trusted = Harness(program.source, program.name, trusted=True)
    jailed = Harness(program.source, program.name, trusted=False)
    with _closing(HarnessEnv(domain, harness=trusted)) as here, _closing(HarnessEnv(domain, harness=jailed)) as there:
        for number in range(episodes):
            first = record(play(here, seed + number, model(seed + number)))
            where = f"{domain.name}, harness {program.name}, seed {seed + number}"
            again = record(play(here, seed + number, model(seed + number)))
            _expect(first == again, f"{where}: the same seed and replies gave another episode", first, again)
            inside = record(play(there, seed + number, model(seed + number)))
            _expect(first == inside, f"{where}: jailed, the episode is another", first, inside)
            _check_finished(here, where)


def play(env: HarnessEnv, seed: int, model: Iterator[str | Reply]) -> Episode:
    """Play one episode with scripted replies, checking what the env hands out; returns its record."""
    observation, info = env.reset(seed=seed)
    for turn in itertools.count():
        _expect(env.observation_space.contains(observation), f"{observation!r:.200} is not in the observation space")
        _check_ask(env, observation, info)
        action = next(model)
        _expect(env.action_space.contains(action), f"{action!r:.80} is not in the action space")
        observation, reward, terminated, truncated, info = env.step(action)
        _expect(0.0 <= reward <= 1.0, f"a reward is a score from 0 to 1, not {reward!r}")
        if terminated or truncated:
            break
        _expect(reward == 0.0, f"the reward is 0 until the end, not {reward!r}")
        _expect(turn < env.domain.max_asks, f"more than {env.domain.max_asks} model calls in one episode")
    episode: Episode = info["record"]
    _expect(env.observation_space.contains(observation), f"{observation!r:.200} is not in the observation space")
    _expect(reward == episode.score, f"the last reward is the score {episode.score!r}, not {reward!r}")
    told = info["verdict"], info["behaviours"], info["failure"], info["task_id"], info["ask"]
    kept = episode.verdict, episode.behaviours, episode.failure, episode.task_id, None
    _expect(told == kept, f"at the end info says {told!r:.300} of an episode that says {kept!r:.300}")
    return episode


def _check_ask(env: HarnessEnv, observation: Observation, info: dict[str, Any]) -> None:
    """Before a reply, info has the ask that the observation shows, and the cap on the reply."""
    _expect({"ask", "task_id"} <= info.keys(), f"info lacks ask or task_id: {sorted(info)}")
    ask, most = info["ask"], env.domain.max_tokens
    if ask is None:  # the harness failed or answered before it asked: the next step ends the episode
        _expect(observation == (), f"there is no ask, but an observation: {observation!r:.200}")
        return
    _expect(list(observation) == ask.messages, f"the observation is not what is asked: {observation!r:.200}")
    cap = min(ask.max_tokens or most, most)
    _expect(info["max_tokens"] == cap, f"max_tokens is {info['max_tokens']!r} where ask and domain give {cap}")


def replies(seed: int, choices: Sequence[str] = REPLIES) -> Iterator[str | Reply]:
    """Replies drawn from `choices` for ever."""
    draw = random.Random(f"replies/{seed}")
    while True:
        yield draw.choice(choices)


def record(episode: Episode) -> bytes:
    """An episode as JSON without its times: equal for two episodes that went the same way."""
    return msgspec.json.encode(_timeless(msgspec.to_builtins(episode)))


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _timeless(v) for k, v in value.items() if k != "seconds"}
    return [_timeless(v) for v in value] if isinstance(value, list | tuple) else value


def _domain(env: str | Domain) -> Domain:
    if isinstance(env, Domain):
        return env
    if "/" not in env:
        return load_domain(env)
    made = gymnasium.make(env).unwrapped
    if not isinstance(made, HarnessEnv):
        raise UserError(f"{env!r} is a {type(made).__name__}: expected the id of a HarnessEnv, a domain, or its name")
    with _closing(made):
        return made.domain


@contextlib.contextmanager
def _closing(opened: T) -> Iterator[T]:
    """Close an env or a world twice at the end, since a second `close` must be harmless."""
    try:
        yield opened
    finally:
        opened.close()
        opened.close()


def _check_splits(domain: Domain) -> None:
    content = {s: {domain.content(task) for task in domain.splits[s]} for s in SPLITS}
    for one, other in itertools.combinations(SPLITS, 2):
        shared = len(content[one] & content[other])
        _expect(not shared, f"{domain.name}: {shared} tasks are both in the {one} and in the {other} split")


def _check_world(domain: Domain, task: Task) -> None:
    where = f"{domain.name}, task {task.id}"
    with _closing(domain.world(task)) as world:
        verdict = world.verdict(world.solve())
        _expect(verdict.score == 1.0, f"{where}: the gold solution scores {verdict.score!r} ({verdict.reason})")
        tools = tuple(world.tools)
    for answer in WRONG:
        with _closing(domain.world(task)) as world:
            verdict = world.verdict(answer)
        _expect(verdict.score == 0.0, f"{where}: the wrong answer {answer!r:.80} scores {verdict.score!r}")
    for name, (args, kwargs) in itertools.product(tools, ARGUMENTS):
        with _closing(domain.world(task)) as world:
            try:
                Toolbox(world.tools).call(name, args, kwargs)
            except (ToolUseError, EpisodeError):
                continue
            except Exception as error:
                called = f"{name}(*{args!r}, **{kwargs!r})"
                told = f"{where}: {called} raised {error!r}, where only ToolUseError is declared"
                raise ContractError(told) from error


def _check_finished(env: HarnessEnv, where: str) -> None:
    try:
        env.step("")
    except UserError:
        return
    raise ContractError(f"{where}: a finished env took another step")


def _expect(holds: bool, otherwise: str, *shown: bytes) -> None:
    if not holds:
        raise ContractError("\n".join([otherwise, *(s.decode(errors="replace")[:4_000] for s in shown)]))
