"""The study's arms, sizes and budgets: each arm of a seed is a `RunConfig`, as `whale run` takes it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from whale_envs.errors import unknown
from whale_train.config import RunConfig

#: The arm that is only tested: the bundled weights under h0, where all others start.
START = "start"
#: What makes each arm; (epochs, rounds) are the paper's.
ARMS: dict[str, dict[str, Any]] = {
    "weights-only": {"schedule": "weights-only", "cycles": 4},
    "harness-only": {"schedule": "harness-only", "cycles": 4},
    "fst": {"epochs": 0.6, "rounds": 6, "edits": "prompt-only"},
    "stagewise": {"schedule": "stagewise", "epochs": 0.6, "rounds": 6},
    "fixed-0.2-2": {"epochs": 0.2, "rounds": 2},
    "fixed-0.2-6": {"epochs": 0.2, "rounds": 6},
    "fixed-0.6-2": {"epochs": 0.6, "rounds": 2},
    "fixed-0.6-6": {"epochs": 0.6, "rounds": 6},
    "fixed-1.0-10": {"epochs": 1.0, "rounds": 10},
    "adaptive": {"schedule": "adaptive"},
    "bandit": {"schedule": "bandit", "epochs": 0.2, "rounds": 2},
}
#: Episodes of each test task at the end, and at a point of the curve before that.
REPEATS, CURVE_REPEATS = 8, 1
#: The most points of a curve between its start and its end.
CURVE_POINTS = 2


@dataclass(frozen=True)
class Sizes:
    """What is smaller than in the paper, a domain: an RSFT step is `prompts` x `group` rollouts (256 x 8 there), a
    search round `candidates` x `tasks` (3 x 256), a test `test` tasks."""

    prompts: int
    group: int
    candidates: int
    tasks: int
    test: int = 256


#: 204 prompts are a fifth of the 1,024 weight tasks, so that 0.2, 0.6 and 1.0 epochs are whole steps.
SIZES = dict.fromkeys(("search-qa", "math", "chess"), Sizes(204, 1, 2, 48))
#: The rollouts of an arm (about 600,000 in the paper). The first is that of the study: it holds two cycles of
#: (1.0, 10), but for the last rounds of the second. Twice as many tell what is so for want of rollouts.
BUDGET, LARGE = 3500, 7000


def arm_config(domain: str, arm: str, seed: int, work: Path, budget: int = BUDGET) -> RunConfig:
    """The configuration of an arm. Raises `UserError` for a name that is none."""
    if domain not in SIZES:
        raise unknown("domain", domain, SIZES)
    if arm not in (START, *ARMS):
        raise unknown("arm", arm, ARMS)
    size = SIZES[domain]
    given: dict[str, Any] = {
        "prompts": size.prompts,
        "group": size.group,
        "candidates": size.candidates,
        "tasks": size.tasks,
        "budget_rollouts": budget,
        "repeats": REPEATS,
        "limit": size.test,
        "baselines": False,
        **ARMS.get(arm, {}),
    }
    return RunConfig(domain=domain, seed=seed, out=work / str(budget) / domain / arm / str(seed), **given)


def command(domain: str, arm: str, seed: int, budget: int) -> str:
    """What runs one line again, where it is not done."""
    other = "" if budget == BUDGET else f" --budget {budget}"
    return f"python benchmarks/recipe/run.py{other} --domains {domain} --arms {arm} --seeds {seed}"


def whale_command(config: RunConfig, arm: str) -> str:
    """The same arm as the command line's own run, which also tests its start and where each of its cycles ends."""
    if arm == START:
        return f"whale eval --domain {config.domain} --seed {config.seed} --limit {config.limit}"
    words = ["whale", "run"]
    for field in fields(config):
        value, flag = getattr(config, field.name), field.name.replace("_", "-")
        if value == field.default or field.name == "out":
            continue
        words += (
            ([f"--{flag}"] if value else [f"--no-{flag}"]) if isinstance(value, bool) else [f"--{flag}", str(value)]
        )
    return shlex.join(words)
