"""A report's part on harnesses: those that were accepted, what each was meant to do, and what it changed."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from html import escape
from typing import Any

from whale_train.report.data import Arm, Run, Step
from whale_train.report.elements import LONG, TEXT, Cell, diff, folded, interval, note, number, table


def harnesses(run: Run) -> Iterable[str]:
    """For each arm that searched, the harnesses that it accepted; the first arm's first and open."""
    searched = [arm for arm in run.arms if arm.steps]
    for i, arm in enumerate(searched):
        parts = [_count(arm), _accepted(arm), *_searches(arm, run.result.get("shadow")), *_changes(arm)]
        if i == 0:
            yield f"<h2>The accepted harnesses of {escape(arm.label)}</h2>"
            yield from parts
        else:
            yield f"<h3>{escape(arm.label)}</h3>"
            yield folded("its accepted harnesses", *parts)


def _count(arm: Arm) -> str:
    times = {1: "never replaced", 2: "replaced once"}.get(len(arm.steps), f"replaced {len(arm.steps) - 1} times")
    return f"<p>The first harness was {times}; {arm.candidates} candidates are in the archive.</p>"


def _accepted(arm: Arm) -> str:
    rows: list[list[Cell]] = []
    for step in arm.steps:
        varied = escape(", ".join(step.axes)) or "–"
        hypothesis = (LONG, escape(step.hypothesis.strip()))
        rows.append([escape(step.when), (TEXT, f"<code>{step.hash}</code>"), hypothesis, varied, number(step.score)])
    return table(["accepted", (TEXT, "harness"), (TEXT, "hypothesis"), "varied", "search score then, %"], rows)


def _searches(arm: Arm, shadow: dict[str, Any] | None) -> Iterable[str]:
    """What each of an arm's searches came to, and how much of that is estimated to be luck."""
    rows: list[list[Cell]] = []
    for done in arm.searched:
        score, luck = number(done.accepted_mean), number(done.optimism)
        accepted = (TEXT, f"<code>{escape(done.accepted)}</code>")
        rows.append([escape(done.phase), accepted, score, luck, number(done.confirmed), "–"])
    if not rows:
        return
    if shadow is not None:
        rows[-1][-1] = interval(shadow["mean@8"], *shadow["ci95"])
    heads: list[Cell] = ["search", (TEXT, "accepted"), "search score, %", "estimated optimism, points"]
    yield table([*heads, "under fresh seeds, %", "on shadow tasks, %"], rows)
    yield note(
        "The best of many scores is partly luck. The optimism is the bootstrap's estimate (over tasks) of how much too"
        " high the best score of the phase is."
    )


def _changes(arm: Arm) -> Iterable[str]:
    """Each accepted harness's change of the one before; where there are several, that from first to last, open."""
    steps = arm.steps
    if len(steps) == 1:
        return
    yield "<h3>What changed</h3>"
    if len(steps) > 2:
        yield _change(steps[0], steps[-1])
    for before, after in itertools.pairwise(steps):
        what = f"{escape(after.when)}: <code>{before.hash}</code> to <code>{after.hash}</code>"
        change = _change(before, after)
        yield change if len(steps) == 2 else folded(what, change)


def _change(before: Step, after: Step) -> str:
    return diff(before.source, after.source, before.hash, after.hash)
