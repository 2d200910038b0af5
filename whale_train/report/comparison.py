"""The page and the figure of several runs: their arms side by side, where they ended, and the differences."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence
from html import escape

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from whale_train.ledger import Spent, total
from whale_train.report.data import Arm
from whale_train.report.elements import (
    LONG,
    TEXT,
    Cell,
    difference,
    duration,
    figure,
    named,
    note,
    number,
    percent,
    shell,
    span,
    table,
)
from whale_train.report.figures import GRID, STYLE, colour, dress, legend, line, phases
from whale_train.report.pooling import Group, Series, difference_over_seeds, difference_over_tasks

#: Graphs side by side.
COLUMNS = 3


def draw_comparison(groups: Sequence[Group], series: Sequence[Series]) -> Figure:
    """A graph of curves for each configuration, on one scale, and below them where every arm ended."""
    columns = min(COLUMNS, len(groups))
    rows = -(-len(groups) // columns)
    low, high = _range(series)
    first = groups[0].runs[0]
    title = f"Test scores on {first.info.config['domain']}"
    ends = 0.6 + 0.32 * len(series)
    with rc_context(STYLE | {"font.size": 10}):
        made = Figure(figsize=(9.6, 0.6 + 3.2 * rows + ends), layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1))
        grid = made.add_gridspec(rows + 1, columns, height_ratios=[3.2] * rows + [ends])
        for i, group in enumerate(groups):
            axes = made.add_subplot(grid[divmod(i, columns)])
            _curves(axes, group, [s for s in series if s.group is group])
            axes.set_ylim(low, high)
            if i % columns == 0:
                axes.set_ylabel(f"test mean@{first.k}, %")
            axes.set_xlabel("cumulative rollouts")
        _ends(made.add_subplot(grid[rows, :]), series, (low, high), first.k)
        legend(made, [s.name for s in series], "outside upper right")
        made.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
        return made


def _range(series: Sequence[Series]) -> tuple[float, float]:
    """The scale of all graphs, in percent. An interval over very few seeds may leave it."""
    alone = [p for s in series if len(s.arms) == 1 for arm in s.arms.values() for p in arm.curve]
    means = [p.mean for s in series for arm in s.arms.values() for p in arm.curve]
    ends = [found for s in series if (found := s.over_tasks(-1)) is not None]
    values = [*means, *(v for p in (*alone, *ends) for v in (p.low, p.high))]
    low, high = 100 * min(values), 100 * max(values)
    room = max(3.0, 0.06 * (high - low))
    return max(0.0, low - room), min(104.0, high + room)


def _curves(axes: Axes, group: Group, series: Sequence[Series]) -> None:
    """The curves of a group, and where it is a single run, its phases.

    An interval over two seeds is wider than the graph; both lines are there to be seen in its place.
    """
    whale = [arm for arm in group.runs[0].arms if arm.name == "whale"]
    alone = len(group.runs) == 1
    if alone and whale:
        phases(axes, whale[0])
    for one in series:
        line(axes, one.name, one.curve(), band=len(one.arms) != 2)
        for arm in one.arms.values() if len(one.arms) > 1 else ():
            points = [(p.rollouts, 100 * p.mean) for p in arm.curve]
            axes.plot(*zip(*points, strict=True), color=colour(one.name), lw=0.7, alpha=0.55)
    seeds = f"seed {group.runs[0].info.seed}" if alone else f"{len(group.runs)} seeds"
    title = f"{group.name}, {seeds}" if group.name else seeds
    axes.set_title(title, loc="left", fontsize=10, pad=22 if alone else 8)  # above the strip of phases
    dress(axes, ticks=4)


def _ends(axes: Axes, series: Sequence[Series], scale: tuple[float, float], k: int) -> None:
    """Where each series ended: every seed, and their mean with the interval over tasks (thick) and seeds (thin)."""
    for y, one in enumerate(series):
        tint = colour(one.name)
        for found, width in ((one.over_tasks(-1), 3.2), (one.over_seeds(-1), 1.1)):
            if found is not None and found.tasks > 1:
                axes.plot([100 * found.low, 100 * found.high], [y, y], color=tint, lw=width, solid_capstyle="butt")
        if len(one.arms) > 1:
            seeds = [100 * arm.curve[-1].mean for arm in one.arms.values()]
            axes.plot(seeds, [y] * len(seeds), ls="", marker="|", ms=9, color=tint)
        axes.plot(100 * one.mean(-1), y, marker="o", ms=7, color=tint, mec="white", mew=1.2, zorder=3)
    axes.set_yticks(range(len(series)), [one.label for one in series])
    axes.set_ylim(len(series) - 0.5, -0.5)
    axes.set_xlim(*scale)
    axes.set_xlabel(f"test mean@{k} at the end, %")
    axes.grid(axis="x", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0, pad=6)


def comparison_page(groups: Sequence[Group], series: Sequence[Series], svg: str) -> str:
    """The whole page; `svg` is the figure."""
    runs = [run for group in groups for run in group.runs]
    domain = runs[0].info.config["domain"]
    best = max(series, key=lambda s: s.mean(-1))
    parts = [
        f'<p class="eyebrow">comparison · {escape(domain)} · {len(runs)} runs</p>',
        f"<h1>{escape(best.label)} ends highest: {percent(best.mean(-1))}</h1>",
        figure(svg),
        note(_legend(series)),
        *_scores(series, runs[0].k),
        *_differences(series),
        *_runs(groups),
    ]
    return shell(f"WHALE comparison: {domain}", parts)


def _legend(series: Sequence[Series]) -> str:
    alone = "Bands and bars are 95 % intervals, Student t over tasks."
    if all(len(s.arms) == 1 for s in series):
        return f"{alone} The test set was not looked at by training, search or any choice."
    return (
        "Runs that differ only in their seeds are pooled: lines are means over seeds (each seed thin), each seed's"
        " points joined by straight lines and averaged as far as the shortest goes; bands are 95 % intervals, Student t"
        " over the seeds' means, from three seeds on. Below, the thick bar is the interval over tasks (each"
        " task the mean of all its episodes under all seeds), the thin one that over seeds, the ticks the seeds. Of an"
        " arm with one seed, bands and bars are over tasks. The test set was not looked at by training, search or any"
        " choice."
    )


def _scores(series: Sequence[Series], k: int) -> Iterable[str]:
    """Where each series ended, with both intervals, and what a run of it took."""
    rows: list[list[Cell]] = []
    for one in series:
        spent = [_spent(arm) for arm in one.arms.values()]
        time, dollars = (statistics.fmean(getattr(s, what) for s in spent) for what in ("seconds", "dollars"))
        rows.append(
            [
                _name(one),
                str(len(one.arms)),
                number(one.mean(0)),
                number(one.mean(-1)),
                span(one.over_tasks(-1)),
                span(one.over_seeds(-1)),
                _rollouts(one),
                duration(time),
                f"${dollars:.2f}",
            ]
        )
    yield "<h2>Scores</h2>"
    heads: list[Cell] = ["arm", "seeds", "start", "end", "end, over tasks", "end, over seeds"]
    groups = [("", 2), (f"test mean@{k}, %", 4), ("cost of a run, tests not counted", 3)]
    yield table([*heads, "rollouts", "time", "dollars"], rows, groups)


def _differences(series: Sequence[Series]) -> Iterable[str]:
    """The differences between all ends."""
    rows: list[list[Cell]] = [
        [f"{_name(a)} minus {_name(b)}", difference(difference_over_tasks(a, b)),
         difference(difference_over_seeds(a, b))]
        for a, b in itertools.combinations(series, 2)
    ]  # fmt: skip
    if rows:
        yield "<h2>Differences at the end</h2>"
        yield table(["", "points, paired by task", "points, paired by seed"], rows)
        yield note(
            "With 95 % intervals, Student t over tasks' or seeds' differences; a dash where there are fewer than two."
        )


def _runs(groups: Sequence[Group]) -> Iterable[str]:
    """The configurations, and the runs that the page is made from."""
    yield "<h2>Where it comes from</h2>"
    if len(groups) > 1:
        differ: list[list[Cell]] = [[escape(group.name), (LONG, escape(group.differs))] for group in groups]
        yield table(["configuration", (TEXT, "differs in")], differ)
    rows: list[list[Cell]] = []
    for name, run in ((group.name, run) for group in groups for run in group.runs):
        info = run.info
        command = (LONG, f"<code>{escape(info.command)}</code>")
        cells: list[Cell] = [escape(str(run.folder)), (TEXT, escape(name) or "–"), str(info.seed), command]
        rows.append([*cells, escape(info.versions["whale-rl"]), escape(info.tier.partition(":")[0])])
    heads: list[Cell] = ["run", (TEXT, "configuration"), "seed", (TEXT, "command"), "version", "sandbox tier"]
    yield table(heads, rows)
    tested = groups[0].runs[0].test_set
    yield note(f"All were tested on test set {tested}; each run's own report has its hashes and versions.")


def _spent(arm: Arm) -> Spent:
    return total("all", [spent for kind, spent in arm.ledger.items() if kind != "test"])


def _rollouts(one: Series) -> str:
    spent = [arm.curve[-1].rollouts for arm in one.arms.values()]
    return f"{min(spent):,}" if min(spent) == max(spent) else f"{min(spent):,} to {max(spent):,}"


def _name(one: Series) -> str:
    return named(one.label, colour(one.name))
