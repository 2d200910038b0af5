"""What the commands that make a run folder do, once their arguments are understood.

What can be said without torch is said before it is loaded: a harness that is not there, a folder that is another run's.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from whale_envs import Harness, sandbox
from whale_train.config import DiagnoseConfig, EvalConfig
from whale_train.console import ConsoleProgress, quieten
from whale_train.options import MOST, Job
from whale_train.run_folder import RunFolder

if TYPE_CHECKING:
    from whale_train.evaluate import Evaluation
    from whale_train.policies.base import Policy
    from whale_train.whale import Experiment


def experiment(config: Experiment) -> int:
    """`whale run`, `train` and `search`: run it, then say the result and where the report is."""
    look_at(config)
    from whale_train.run import run

    folder = run(config)
    print(folder / "report.html")
    return 0


def diagnosis(config: DiagnoseConfig) -> int:
    """`whale diagnose`: train a little, search a little, then say what the agent is bound by."""
    look_at(config)
    from whale_train.diagnose import diagnose, show

    folder, found = diagnose(config)
    show(config, found)
    print(folder)
    return 0


def evaluation(config: EvalConfig) -> int:
    """`whale eval`: evaluate, keep every episode, say the result."""
    harness = config.start()
    with begun(config, harness) as (folder, policy):
        from whale_train.evaluate import evaluate

        domain = config.load_domain()
        episodes = min(len(domain.splits[config.split]), config.limit or MOST) * config.repeats
        with ConsoleProgress(config.kind, episodes) as progress:
            found, _ = evaluate(
                policy,
                domain,
                harness,
                config.split,
                config.repeats,
                config.limit,
                config.seed,
                progress,
                folder.path / "test",
            )
            progress.finish()
        folder.write_result(**_fields(found))
    _print(config, found)
    print(folder.path)
    return 0


def look_at(config: Job) -> None:
    """Say what is wrong with what was given, as far as that goes without torch."""
    if config.unsafe:
        sandbox.allow_unsafe()
    config.check()
    if sys.stderr.isatty():
        print(f"whale {config.kind}: {config.folder}; loading torch and the model ...", file=sys.stderr, flush=True)


@contextmanager
def begun(config: Job, tried: Harness) -> Iterator[tuple[RunFolder, Policy]]:
    """The run folder and the policy of a job that this process does itself.

    Raises `UserError` when one of them is not fit, or a few episodes of the policy under the harness `tried` all fail.
    """
    look_at(config)
    with RunFolder(config, sandbox.tier()) as folder:
        from whale_train.policies.load import load_policy
        from whale_train.preflight import preflight

        quieten()
        policy = load_policy(config.policy, config.domain)
        folder.starts_from(policy.weights_hash)
        if not folder.finished:
            preflight(policy, config.load_domain(), tried)
        yield folder, policy


def _fields(found: Evaluation) -> dict[str, Any]:
    kept = {name: getattr(found, name) for name in ("behaviours", "failures", "rollouts", "seconds", "dollars")}
    return {**found.summary(), "tasks": found.score.tasks, **kept}


def _print(config: EvalConfig, found: Evaluation) -> None:
    what = f"{config.policy} on {config.domain} ({config.split}, {found.score.tasks} tasks) under {config.harness}"
    print(f"mean@{config.repeats} {found.score}  {what}")
    for name, estimate in found.sets.items():
        print(f"  {name or 'of no named set':<28} {estimate}  ({estimate.tasks} tasks)")
    for name, rate in found.behaviours.items():
        print(f"  {name:<28} {100 * rate:5.1f} %")
    for owner, count in found.failures.items():
        print(f"  failed, owner {owner:<14} {count:5d} episodes")
