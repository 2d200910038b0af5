"""A report's part on what a run cost, in two currencies: rollouts, and time and money."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

import msgspec

from whale_train.ledger import Spent, total
from whale_train.report.data import Arm, Run
from whale_train.report.elements import TEXT, Cell, duration, note, table

#: Kinds of work in the order shown. The judge's dollars are taken out of the work that it scored.
KINDS = ("sampling", "training", "search", "proposer", "judge", "test")


def costs(run: Run) -> Iterable[str]:
    """What each arm spent, by kind, and in all but its tests."""
    arms = [arm for arm in run.arms if arm.ledger]
    if not arms:
        return
    yield "<h2>What it cost</h2>"
    for arm in arms:
        yield f"<h3>{escape(arm.label)}</h3>"
        yield _arm(arm)
    yield note(
        "The total is what the budget counts, without the tests, which choose nothing; a test that arms share is in"
        " each one's table. Time is that of the processes at work, which wait for each other's cores; a judge's is in"
        " that of the work that it scored. A dash: none, or not counted."
    )


def _arm(arm: Arm) -> str:
    spent = by_kind(arm.ledger)
    rows = [_row(kind, found) for kind, found in spent.items()]
    rows.append(_row("total, tests not counted", total("total", [s for kind, s in spent.items() if kind != "test"])))
    heads: list[Cell] = [(TEXT, "kind"), "rollouts", "prompt tokens", "sampled tokens", "trained tokens"]
    groups = [("", 1), ("rollouts and tokens", 4), ("time and dollars", 2)]
    return table([*heads, "time", "dollars"], rows, groups, total=True)


def by_kind(ledger: dict[str, Spent]) -> dict[str, Spent]:
    """A ledger's totals by kind in the order shown, with the judge's dollars apart."""
    judged = sum(spent.judge for spent in ledger.values())
    found = {kind: msgspec.structs.replace(s, dollars=s.dollars - s.judge, judge=0.0) for kind, s in ledger.items()}
    if judged:
        found["judge"] = Spent("judge", "judge", dollars=judged)
    return {kind: found[kind] for kind in (*KINDS, *sorted(found.keys() - set(KINDS))) if kind in found}


def _row(name: str, spent: Spent) -> Sequence[Cell]:
    counts = (spent.rollouts, spent.prompt_tokens, spent.sampled_tokens, spent.trained_tokens)
    time = duration(spent.seconds) if spent.seconds else "–"
    dollars = f"${spent.dollars:.2f}" if spent.dollars else "–"
    return [name, *(f"{count:,}" if count else "–" for count in counts), time, dollars]
