"""What the commands that make a run folder do, once their arguments are understood."""

from __future__ import annotations

from typing import Any

from whale_envs import sandbox
from whale_train.config import EvalConfig, SearchOptions
from whale_train.console import ConsoleProgress, quieten
from whale_train.evaluate import Evaluation, evaluate
from whale_train.meta_harness.proposers import load_proposer
from whale_train.policies.load import load_policy
from whale_train.preflight import preflight
from whale_train.run import run
from whale_train.run_folder import RunFolder
from whale_train.whale import Experiment


def experiment(config: Experiment) -> int:
    """`whale run`, `train` and `search`: run it, then say the result and where the report is."""
    _prepare(config.unsafe)
    if isinstance(config, SearchOptions):
        load_proposer(config.proposer)  # says now, and not after a weight phase, that its key is missing
    folder = run(config)
    print(folder / "report.html")
    return 0


def evaluation(config: EvalConfig) -> int:
    """`whale eval`: evaluate, keep every episode, say the result."""
    _prepare(config.unsafe)
    domain, harness = config.load_domain(), config.start()
    policy = load_policy(config.policy, config.domain)
    tasks = domain.splits[config.split]
    hashes = {"harness": harness.hash, "data": tasks.hash, "weights": policy.weights_hash}
    with RunFolder(config, hashes, sandbox.tier()) as folder:
        if not folder.finished:
            preflight(policy, domain, harness)
        episodes = min(len(tasks), config.limit or len(tasks)) * config.repeats
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


def _prepare(unsafe: bool) -> None:
    if unsafe:
        sandbox.allow_unsafe()
    quieten()


def _fields(found: Evaluation) -> dict[str, Any]:
    kept = {name: getattr(found, name) for name in ("behaviours", "failures", "rollouts", "seconds", "dollars")}
    return {**found.summary(), "tasks": found.score.tasks, **kept}


def _print(config: EvalConfig, found: Evaluation) -> None:
    what = f"{config.policy} on {config.domain} ({config.split}, {found.score.tasks} tasks) under {config.harness}"
    print(f"mean@{config.repeats} {found.score}  {what}")
    for name, rate in found.behaviours.items():
        print(f"  {name:<28} {100 * rate:5.1f} %")
    for owner, count in found.failures.items():
        print(f"  failed, owner {owner:<14} {count:5d} episodes")
