"""`whale plan` as people read it: each figure with what it follows from, and each assumption beside it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from whale_train import plan
from whale_train.plan import ArmPlan, Costing, PlanConfig, costing
from whale_train.schedules import Phase

#: Columns of labels and figures, and of a line.
LABEL, FIGURE, WIDTH = 20, 18, 120


def told(config: PlanConfig) -> str:
    """What a run with these options would cost. Raises `UserError` as `costing` does."""
    return "\n".join(_lines(costing(config)))


def _lines(cost: Costing) -> Iterator[str]:
    config, sets = cost.config, cost.data.splits
    sizes = " / ".join(f"{len(tasks):,}" for tasks in (sets.weight, sets.harness, sets.test))
    yield f"{config.domain}, {config.policy}, schedule {config.schedule}, proposer {config.proposer}"
    yield f"{sizes} tasks to train on, search on and test on ({cost.data.origin})"
    for part in (_rollouts, _tokens, _steps, _dollars, _disk, _hours):
        yield ""
        yield from part(cost)


def _rollouts(cost: Costing) -> Iterator[str]:
    yield "rollouts"
    for arm in cost.arms:
        yield from _row(arm.name, f"{arm.rollouts:,}", f"{_phases(arm)}; {_spent(arm)}")
    points = 1 + sum(arm.tests for arm in cost.arms)
    tasks = cost.test_rollouts // points // cost.config.repeats
    note = f"{points} points of the arms' curves × {tasks:,} tasks × {cost.config.repeats}; in no arm's budget"
    yield from _row("test", f"{cost.test_rollouts:,}", note)
    yield from _row("all", f"{cost.rollouts + cost.test_rollouts:,}", "")


def _phases(arm: ArmPlan) -> str:
    """The phases in words, those alike together."""
    kinds: dict[str, list[Phase]] = {"weights": [], "harness": []}
    for phase, _ in arm.phases:
        kinds[phase.kind].append(phase)
    units = {"weights": "RSFT steps", "harness": "search rounds"}
    parts = []
    for kind, phases in kinds.items():
        amounts = sorted({phase.amount for phase in phases})
        each = (
            " or ".join(f"{amount:,}" for amount in amounts) if len(amounts) < 3 else f"{amounts[0]} to {amounts[-1]}"
        )
        if phases:
            many = "a phase" if len(phases) == 1 else f"{len(phases)} phases"
            parts.append(f"{many} of {each} {units[kind]}")
    shortest = any(phase.patience for phase, _ in arm.phases)
    return ", ".join(parts) + (" (as short as their signals can make them: at most so many)" if shortest else "")


def _spent(arm: ArmPlan) -> str:
    costs, steps, rounds = arm.plan.costs, arm.units("weights"), arm.units("harness")
    parts = [f"{steps:,} steps × {costs.step:,}"] if steps else []
    if rounds:
        rest = sum(spent for phase, spent in arm.phases if phase.kind == "harness") - rounds * costs.round
        parts.append(f"{rounds:,} rounds × {costs.round:,}, {rest:,} for baselines")
    return "; ".join(parts)


def _tokens(cost: Costing) -> Iterator[str]:
    config = cost.config
    yield "tokens"
    for label, total, each in (
        ("prompt", cost.prompt_tokens, plan.prompt_tokens(config)),
        ("sampled", cost.sampled_tokens, plan.sampled_tokens(config)),
    ):
        yield from _row(label, _big(total), f"{each.value:,.0f} an episode: {each.origin}")
    share = plan.accepted(config)
    note = f"{share.value:.0%} of the episodes of weight phases are accepted: {share.origin}"
    yield from _row("trained", _big(cost.trained_tokens), note)


def _steps(cost: Costing) -> Iterator[str]:
    steps = sum(arm.units("weights") for arm in cost.arms)
    yield from _row("RSFT steps", f"{steps:,}", f"of {cost.config.prompts:,} tasks × {cost.config.group}")
    note = f"minibatches of {cost.config.minibatch:,} accepted episodes, with one row each"
    yield from _row("optimiser steps", f"{cost.optimiser_steps:,}", note)


def _dollars(cost: Costing) -> Iterator[str]:
    expected, most = cost.proposer_dollars
    each = plan.conversation(cost.config)
    note = f"{cost.rounds:,} rounds × {each.value:.2f}: {each.origin}"
    if most:
        note += (
            f". At most {most:,.0f}: {plan.conversations(cost.config)} conversations a round, "
            f"{cost.config.proposer_dollars:g} each"
        )
    yield from _row("proposer dollars", f"{expected:,.0f}", note)


def _disk(cost: Costing) -> Iterator[str]:
    config = cost.config
    size, width = plan.parameters(config), plan.parameter_bytes(config)
    kept = sum(arm.weight_phases for arm in cost.arms)
    yield "disk"
    note = f"{kept} × {size.value:,.0f} parameters ({size.origin}) × {width.value:g} bytes: {width.origin}"
    yield from _row("checkpoints", _bytes(cost.checkpoint_bytes), note)
    each = (
        f"{plan.PROMPT_BYTES} bytes a prompt token, {plan.SAMPLED_BYTES} a sampled one, {plan.EPISODE_BYTES:,} an "
        "episode: measured with the bundled models"
    )
    searched = cost.rollouts - cost.training_rollouts
    yield from _row("episodes trained on", _bytes(cost.episode_bytes(cost.training_rollouts)), each)
    yield from _row("archive", _bytes(cost.episode_bytes(searched)), "the same")
    yield from _row("tests", _bytes(cost.episode_bytes(cost.test_rollouts)), "the same")


def _hours(cost: Costing) -> Iterator[str]:
    sampling, prompt, training = plan.speeds(cost.config)
    yield f"hours on {plan.device(cost.config).name}, all arms one after the other"
    note = f"{sampling.value:,.0f} tokens a second: {sampling.origin}; prompts {prompt.value:,.0f}: {prompt.origin}"
    yield from _row("sampling", f"{cost.sampling_hours:,.1f}", note)
    note = f"{training.value:,.0f} tokens a second, prompts among them: {training.origin}"
    yield from _row("training", f"{cost.training_hours:,.1f}", note)
    if plan.conversation(cost.config).value:
        each = plan.conversations(cost.config)
        most = cost.rounds * each * cost.config.proposer_minutes / 60
        note = f"{each} conversations a round, {cost.config.proposer_minutes:g} minutes each, cap of all"
        yield from _row("proposer, at most", f"{most:,.1f}", note)


def _row(label: str, figure: str, note: str) -> list[str]:
    head = f"  {label:<{LABEL}}{figure:>{FIGURE}}  "
    lines = textwrap.wrap(note, WIDTH - len(head), break_on_hyphens=False) or [""]
    return [(head if at == 0 else " " * len(head)) + line for at, line in enumerate(lines)]


def _big(tokens: float) -> str:
    return f"{tokens / 1e6:,.1f} million" if tokens >= 1e6 else f"{tokens:,.0f}"


def _bytes(size: float) -> str:
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB")):
        if size >= unit:
            return f"{size / unit:,.1f} {name}"
    return f"{size:,.0f} bytes"
