"""The page of one run: what came of it in a sentence and a figure, then what that rests on, part by part."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from whale_train.report.costs import costs
from whale_train.report.data import Arm, Run, between
from whale_train.report.elements import (
    LONG,
    TEXT,
    Cell,
    bar,
    difference,
    duration,
    figure,
    interval,
    named,
    note,
    percent,
    shell,
    table,
)
from whale_train.report.episodes import episodes
from whale_train.report.figures import FAINT, colour
from whale_train.report.harnesses import harnesses


def page(run: Run, curves: str, behaviours: str | None) -> str:
    """The whole page; `curves` and `behaviours` are SVG elements."""
    kind, domain, seed = run.info.kind, run.info.config["domain"], run.info.seed
    parts = [
        f'<p class="eyebrow">{escape(kind)} · {escape(domain)} · seed {seed}</p>',
        f"<h1>{escape(headline(run))}</h1>",
        note(_state(run)),
        figure(curves),
        note(
            f"Points are test mean@{run.k}; the lines' bands are 95 % intervals, Student t over tasks."
            f"{_bands(run)} The test set was not looked at by training, search or any choice."
        ),
        *_scores(run),
        *harnesses(run),
        *_behaviours(run, behaviours),
        *costs(run),
        *episodes(run),
        *_provenance(run),
    ]
    return shell(f"WHALE report: {domain}, seed {seed}", parts)


def headline(run: Run) -> str:
    """The result in one sentence."""
    first = run.arms[0]
    start, end = first.curve[0], first.curve[-1]
    change = f"from {percent(start.mean)} to {percent(end.mean)}"
    text = f"{first.label}: test mean@{run.k} {change} after {end.rollouts:,} rollouts"
    others = [f"{arm.label} {percent(arm.curve[-1].mean)}" for arm in run.arms[1:]]
    return text + (f"; {' and '.join(others)}" if others else "")


def _state(run: Run) -> str:
    """Whether it has finished, and what a search's shadow tasks say."""
    seconds = run.result.get("seconds")
    if seconds is None:
        return "Not finished yet: this is what there is so far."
    state, shadow = f"Finished in {duration(seconds)}.", run.result.get("shadow")
    if shadow is None:
        return state
    before, after = percent(shadow["initial"]["mean@8"]), percent(shadow["mean@8"])
    return f"{state} On shadow tasks, which no proposer saw: {before} at the start, {after} with the accepted harness."


def _bands(run: Run) -> str:
    return " Behind them, WHALE's phases." if any(arm.name == "whale" for arm in run.arms) else ""


def _scores(run: Run) -> Iterable[str]:
    """Where each arm started and ended, the paired differences between their ends, and why phases ended."""
    yield "<h2>Scores</h2>"
    rows: list[list[Cell]] = []
    for arm in run.arms:
        start, end = arm.curve[0], arm.curve[-1]
        gain = difference(between(arm.scores(0), arm.scores(-1))) if len(arm.curve) > 1 else "–"
        reached = [interval(point.mean, point.low, point.high) for point in (start, end)]
        rows.append([_name(arm), f"{end.rollouts:,}", *reached, gain])
    yield table(["arm", "rollouts", f"start, mean@{run.k} %", f"end, mean@{run.k} %", "gain, points"], rows)
    rows = [
        [f"{_name(a)} minus {_name(b)}", difference(between(b.scores(-1), a.scores(-1)))]
        for i, a in enumerate(run.arms)
        for b in run.arms[i + 1 :]
    ]
    if rows:
        yield "<h3>Differences at the end</h3>"
        yield table(["", "points"], rows)
    yield note("Differences are paired by task, with 95 % intervals over the tasks' differences.")
    yield from _by_set(run)
    yield from _phases(run)


def _phases(run: Run) -> Iterable[str]:
    """What each phase saw of its training signal, and what ended it."""
    rows: list[list[Cell]] = [
        [
            *(_name(arm), (TEXT, escape(ended.phase))),
            (LONG, " ".join(f"{value:.3f}" for value in ended.signal) or "–"),
            f"{100 * ended.gain:+.1f}",
            (LONG, escape(ended.why or "its planned end, or the budget's")),
        ]
        for arm in run.arms
        for ended in arm.phases[1:]
    ]
    if rows:
        yield "<h3>Phases</h3>"
        heads: list[Cell] = ["arm", (TEXT, "phase"), (TEXT, "what it saw"), "gain, points", (TEXT, "ended by")]
        yield table(heads, rows)
        yield note(
            "A weight phase sees the reward of each step, a search the accepted harness's mean after each round."
        )


def _by_set(run: Run) -> Iterable[str]:
    """The scores of each data set, where the test tasks are of several."""
    start, ends = run.arms[0].sets(0), [(arm, arm.sets(-1)) for arm in run.arms if len(arm.curve) > 1]
    if not start:
        return
    rows = [
        [escape(name or "of no named set"), str(found.tasks)]
        + [interval(e.mean, e.low, e.high) for e in (found, *(end[name] for _, end in ends if name in end))]
        for name, found in start.items()
    ]
    yield "<h3>Scores by data set</h3>"
    yield table(
        [(TEXT, f"test set, mean@{run.k} %"), "tasks", "start", *(f"{_name(arm)}, end" for arm, _ in ends)], rows
    )


def _behaviours(run: Run, svg: str | None) -> Iterable[str]:
    """How often each behaviour was seen: over the tested points, and as numbers at the start and each arm's end."""
    if svg is None:
        return
    start = run.arms[0].behaviours(0)
    ends = [(arm, arm.behaviours(-1)) for arm in run.arms if len(arm.curve) > 1]
    yield "<h2>Behaviours</h2>"
    yield figure(svg)
    rows = [
        [escape(name.replace("_", " ")), bar(start.get(name), FAINT)]
        + [bar(end.get(name), colour(arm.name)) for arm, end in ends]
        for name in dict.fromkeys([*start, *(name for _, end in ends for name in end)])
    ]
    yield table(["share of test episodes, %", "start", *(_name(arm) for arm, _ in ends)], rows)


def _provenance(run: Run) -> Iterable[str]:
    """The exact command, and what else it takes to come to the same numbers."""
    info, last = run.info, run.result.get("command", run.info.command)
    yield "<h2>Where it comes from</h2>"
    yield f"<pre>{escape(info.command)}</pre>"
    facts = {
        **({"taken up last by": last} if last != info.command else {}),
        "sandbox tier": info.tier,
        **{f"{name} hash at the start": value for name, value in info.hashes.items()},
        **{
            f"{arm.label} at the end": f"harness {arm.curve[-1].harness}, weights {arm.curve[-1].weights}"
            for arm in run.arms
        },
        "versions": ", ".join(f"{name} {version}" for name, version in info.versions.items()),
        "configuration": ", ".join(f"{name} {value}" for name, value in info.config.items()),
        "episodes": "every number above comes from test/*/episodes.jsonl and arms/*/ledger.jsonl in this folder",
    }
    yield "<dl>" + "".join(f"<dt>{escape(k)}</dt><dd>{escape(str(v))}</dd>" for k, v in facts.items()) + "</dl>"


def _name(arm: Arm) -> str:
    return named(arm.label, colour(arm.name))
