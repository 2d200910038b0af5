"""The study's figures, from results.json alone; those whose name ends in -7000 are of the lines of twice the budget.

python benchmarks/recipe/figures.py        # figures/{curves,schedules,phases,behaviours,...}.png
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib
from findings import NAMES, WHALE, difference, domains_of, label, of_arm, scores, within
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from results import Row, load
from study import ARMS, BUDGET, LARGE, START

from whale_train.report.figures import COLOURS, FAINT, GRID, INK, PHASES, STYLE, png

HERE = Path(__file__).parent
#: The arms that a curve is drawn of; all of them would hide each other.
DRAWN = {
    WHALE: COLOURS["whale"],
    "adaptive": "#6b4c9a",
    "stagewise": "#b03a5b",
    "fst": "#8a7a1f",
    "weights-only": COLOURS["weights-only"],
    "harness-only": COLOURS["harness-only"],
}


def curves(axes: Axes, rows: Sequence[Row], domain: str) -> None:
    """Score over rollouts: each seed's points joined, the mean over seeds at a grid; the end with its interval."""
    table, most = scores(rows, domain), max(row.rollouts for row in rows)
    grid = [i / 40 * most for i in range(41)]
    starts = {r.seed: r.mean for r in rows if (r.domain, r.arm) == (domain, START)}
    for arm, colour in DRAWN.items():
        lines = [line(row, starts[row.seed]) for row in rows if (row.domain, row.arm) == (domain, arm)
                 and row.seed in starts]  # fmt: skip
        if not lines:
            continue
        reach = min(points[-1][0] for points in lines)
        x = [*(g for g in grid if g < reach), reach]
        axes.plot(x, [100 * statistics.fmean(at(p, g) for p in lines) for g in x], color=colour, lw=1.8)
        end = of_arm(table, arm)
        assert end is not None
        bars = [[100 * (end.mean - end.low)], [100 * (end.high - end.mean)]] if end.low > -1 else None
        axes.errorbar([reach], [100 * end.mean], yerr=bars, color=colour, marker="o", ms=5, capsize=2, label=label(arm))
    axes.set_title(NAMES[domain], loc="left", fontweight="bold")
    axes.set_xlabel("rollouts")
    axes.set_ylabel("test score, %")


def line(row: Row, start: float) -> list[tuple[float, float]]:
    """A seed's points: the start, those tested on the way, and the end."""
    return [(0.0, start), *((float(x), y) for x, y in row.curve), (float(row.rollouts), row.mean)]


def at(points: Sequence[tuple[float, float]], x: float) -> float:
    """The value at `x`, straight between two points."""
    for (left, low), (right, high) in itertools.pairwise(points):
        if x <= right:
            return low if right == left else low + (high - low) * (x - left) / (right - left)
    return points[-1][1]


def schedules(axes: Axes, rows: Sequence[Row], domain: str) -> None:
    """Each arm minus (0.6, 6), with its interval."""
    table = scores(rows, domain)
    names = [arm for arm in ARMS if difference(table, arm, WHALE)]
    for place, arm in enumerate(reversed(names)):
        found = difference(table, arm, WHALE)
        assert found is not None
        bars = [[100 * (found.mean - found.low)], [100 * (found.high - found.mean)]] if found.low > -1 else None
        tint = DRAWN.get(arm, INK)
        axes.errorbar(
            [100 * found.mean], [place], xerr=bars if arm != WHALE else None, color=tint, marker="o", capsize=2
        )
    axes.set_yticks(range(len(names)), [label(arm) for arm in reversed(names)])
    axes.axvline(0, color=FAINT, lw=0.8, ls=(0, (1, 3)))
    axes.set_title(NAMES[domain], loc="left", fontweight="bold")
    axes.set_xlabel(f"points above {label(WHALE)}")


def phases(axes: Axes, rows: Sequence[Row], domain: str) -> None:
    """The phases that adaptive chose, a bar a seed; in brackets those that the budget or the cap ended."""
    mine = [row for row in rows if (row.domain, row.arm) == (domain, "adaptive")]
    for row in mine:
        left = 0
        for kind, units, spent, why in row.phases:
            axes.barh(row.seed, spent, left=left, color=PHASES[kind], edgecolor="white")
            text = f"{units:g}" if why else f"({units:g})"
            axes.text(left + spent / 2, row.seed, text, ha="center", va="center", fontsize=8, color=INK)
            left += spent
    axes.set_yticks([row.seed for row in mine], [f"seed {row.seed}" for row in mine])
    axes.invert_yaxis()
    axes.set_title(NAMES[domain], loc="left", fontweight="bold")
    axes.set_xlabel("rollouts; epochs of weights, rounds of search")


def behaviours(axes: Axes, rows: Sequence[Row], domain: str) -> None:
    """How often each behaviour was seen at the ends, mean over seeds."""
    arms = [START, *DRAWN]
    names = sorted({name for row in rows if row.domain == domain for name in row.behaviours})
    tints = {START: FAINT, **DRAWN}
    for offset, arm in enumerate(arms):
        mine = [row for row in rows if (row.domain, row.arm) == (domain, arm)]
        for place, name in enumerate(names):
            seen = [row.behaviours[name] for row in mine if name in row.behaviours]
            if seen:
                y = place + (offset - len(arms) / 2) * 0.11
                axes.plot([100 * statistics.fmean(seen)], [y], marker="o", ms=5, color=tints[arm], ls="",
                          label=label(arm) if place == 0 else None)  # fmt: skip
    axes.set_yticks(range(len(names)), [name.replace("_", " ") for name in names])
    axes.invert_yaxis()
    axes.set_xlim(-3, 103)
    axes.set_title(NAMES[domain], loc="left", fontweight="bold")
    axes.set_xlabel("% of test episodes")


def figure(draw: Callable[[Axes, Sequence[Row], str], None], rows: Sequence[Row], path: Path, legend: bool) -> None:
    """One panel a domain that has lines; no file where none has."""
    domains = domains_of(rows)
    if not domains:
        return
    with matplotlib.rc_context(STYLE):
        whole = Figure(figsize=(5.4 * len(domains), 4.6), layout="constrained")
        for place, domain in enumerate(domains, 1):
            axes = whole.add_subplot(1, len(domains), place)
            draw(axes, rows, domain)
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(axis="both", color=GRID, linewidth=0.6)
            axes.set_axisbelow(True)
        if legend:
            pairs = (zip(*axes.get_legend_handles_labels(), strict=True) for axes in whole.axes)
            named = {label: handle for handle, label in itertools.chain.from_iterable(pairs)}
            whole.legend(list(named.values()), list(named), loc="outside upper center", ncols=len(named), frameon=False)
        png(whole, path)


def main(results: Path = HERE / "results.json", out: Path = HERE / "figures") -> None:
    """Draw all of them."""
    rows = load(results).results
    out.mkdir(exist_ok=True)
    for draw in (curves, schedules, phases, behaviours):
        figure(draw, within(rows, BUDGET), out / f"{draw.__name__}.png", legend=draw in (curves, behaviours))
    for draw in (curves, schedules):
        figure(draw, within(rows, LARGE), out / f"{draw.__name__}-{LARGE}.png", legend=draw is curves)


if __name__ == "__main__":
    main()
