"""The figures of a run: test mean@k over cumulative rollouts, with the phases as bands, and behaviours over the same.

What any figure here has is here too: colours, style, and how it gets into a file or a page.
"""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from whale_envs.episode import write_atomic
from whale_train.report.data import ARMS, HARNESS, WEIGHTS, Arm

COLOURS = {"whale": "#1d4e89", "weights-only": "#c8691c", "harness-only": "#2f855a"}
OTHER, INK, FAINT, GRID = "#6b4c9a", "#22272e", "#8a939d", "#e3e7eb"
#: Tints of WHALE's phases.
PHASES = {WEIGHTS: "#f6dcc3", HARNESS: "#cfe6d8"}
STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["Inter", "Helvetica Neue", "Arial", "DejaVu Sans"],
    "font.size": 11,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.hashsalt": "whale",  # the same run gives the same bytes
}
#: The most behaviours side by side in their figure.
COLUMNS = 4


def colour(arm: str) -> str:
    """The colour that an arm has everywhere in a report."""
    return COLOURS.get(arm, OTHER)


def draw(arms: Sequence[Arm], title: str) -> Figure:
    """The curves of a run; `arms` have at least one point each."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.6, 5.0), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12))
        axes = figure.add_subplot()
        whale = next((arm for arm in arms if arm.name == "whale"), None)
        if whale is not None:
            phases(axes, whale)
        for arm in arms:
            line(axes, arm.name, [(p.rollouts, p.mean, p.low, p.high) for p in arm.curve])
        top = max(100 * p.high for arm in arms for p in arm.curve)
        bottom = min(100 * p.low for arm in arms for p in arm.curve)
        room = max(4.0, 0.12 * (top - bottom))
        axes.set_ylim(max(0, bottom - room), min(104, top + room))
        dress(axes)
        _labels(axes, arms)
        axes.set_title(title, loc="left", fontsize=13, fontweight="bold", pad=26)
        axes.set_xlabel("cumulative rollouts (training and search, test not counted)")
        axes.set_ylabel(f"test mean@{arms[0].curve[0].k}, %")
        return figure


def draw_behaviours(arms: Sequence[Arm]) -> Figure | None:
    """How often each behaviour was seen at each tested point, one small graph a behaviour; None where there is none."""
    seen = {arm.name: [arm.behaviours(at) for at in range(len(arm.curve))] for arm in arms}
    names = list(dict.fromkeys(name for rates in seen.values() for at in rates for name in at))
    if not names:
        return None
    rows = -(-len(names) // COLUMNS)
    with matplotlib.rc_context(STYLE | {"font.size": 9}):
        figure = Figure(figsize=(9.6, 0.5 + 1.75 * rows), layout="constrained")
        columns = -(-len(names) // rows)
        grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        panels: list[Axes] = grid.ravel().tolist()
        for axes in panels[len(names) :]:
            axes.set_visible(False)
        for axes, name in zip(panels, names, strict=False):
            for arm in arms:
                rates = [at.get(name) for at in seen[arm.name]]
                points = [
                    (p.rollouts, 100 * rate) for p, rate in zip(arm.curve, rates, strict=True) if rate is not None
                ]
                x, y = [at for at, _ in points], [rate for _, rate in points]
                axes.plot(x, y, color=colour(arm.name), lw=1.6, marker="o", ms=3)
            axes.set_title(name.replace("_", " "), loc="left", fontsize=9)
            axes.set_ylim(-4, 104)
            dress(axes, ticks=3)
        for axes in panels[: len(names)][-columns:]:
            axes.tick_params(labelbottom=True)  # the last of its column, which need not be in the last row
        legend(figure, [arm.name for arm in arms], "outside upper left")
        figure.supxlabel("cumulative rollouts", fontsize=9)
        figure.supylabel("share of test episodes, %", fontsize=9)
        return figure


def png(figure: Figure, path: Path) -> None:
    """Write the figure as a PNG of about 1,500 pixels across, atomically."""
    out = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(out, format="png", dpi=160, facecolor="white")
    write_atomic(path, out.getvalue())


def svg(figure: Figure, name: str) -> str:
    """The figure as an inline SVG element that fills its parent's width; `name` keeps its ids apart from another's."""
    out = io.StringIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    return re.sub(r'((?<= id=")|(?<=href="#)|(?<=url\(#))', f"{name}-", text[text.index("<svg") :])


def line(axes: Axes, arm: str, points: Sequence[tuple[float, float, float, float]], band: bool = True) -> None:
    """An arm's line, with its band or without; points are (rollouts, mean, low, high), scores as shares."""
    x, mean, low, high = ([at[i] for at in points] for i in range(4))
    tint, width = colour(arm), 2.4 if arm == "whale" else 1.8
    if band:
        axes.fill_between(x, [100 * v for v in low], [100 * v for v in high], color=tint, alpha=0.15, lw=0)
    axes.plot(x, [100 * v for v in mean], color=tint, lw=width, marker="o", ms=5, mec="white", mew=1.0, zorder=3)


def phases(axes: Axes, arm: Arm) -> None:
    """An arm's phases as bands, with what each is about in a strip along the top."""
    edge = axes.get_xaxis_transform()
    for before, after in itertools.pairwise(arm.phases):
        left, right, kind = before.rollouts, after.rollouts, after.kind
        axes.axvspan(left, right, color=PHASES[kind], alpha=0.28, lw=0, zorder=0)
        strip = Rectangle((left, 1.0), right - left, 0.045, transform=edge, color=PHASES[kind], lw=0, clip_on=False)
        axes.add_patch(strip)
        axes.axvline(right, color=FAINT, lw=0.7, ls=(0, (1, 3)), zorder=0.5)
        if (right - left) / max(arm.curve[-1].rollouts, 1) > 0.06:
            middle = (left + right) / 2
            axes.text(middle, 1.021, kind, transform=edge, ha="center", va="center_baseline", fontsize=9, color=INK)


def dress(axes: Axes, ticks: int = 6) -> None:
    """What all graphs over rollouts have: their grid, their ticks, no frame."""
    axes.set_xlim(left=0)
    axes.xaxis.set_major_locator(MaxNLocator(ticks, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(length=0, pad=6)


def legend(figure: Figure, arms: Iterable[str], place: str) -> None:
    """Which colour is which arm."""
    names = list(dict.fromkeys(arms))
    handles = [Line2D([], [], color=colour(n), lw=2, marker="o", ms=4, label=ARMS.get(n, n)) for n in names]
    figure.legend(handles=handles, loc=place, ncols=len(names), frameon=False)


def apart(values: Sequence[float], gap: float) -> list[float]:
    """Rising values, moved up as far as it takes for each to be `gap` above the one before."""
    return list(itertools.accumulate(values, lambda below, value: max(value, below + gap)))


def _labels(axes: Axes, arms: Sequence[Arm]) -> None:
    """Each line's name and last value at its right end, moved apart where they would overlap."""
    low, high = axes.get_ylim()
    ends = sorted(((100 * arm.curve[-1].mean, arm) for arm in arms), key=lambda end: end[0])
    heights = apart([value for value, _ in ends], 0.062 * (high - low))
    axes.set_xlim(right=max(1, *(arm.curve[-1].rollouts for arm in arms)) * 1.02)
    for (value, arm), height in zip(ends, heights, strict=True):
        axes.annotate(
            f"{arm.label}  {value:.1f}",
            (1.0, height),
            xycoords=("axes fraction", "data"),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            color=colour(arm.name),
            fontweight="bold" if arm.name == "whale" else "normal",
            annotation_clip=False,
        )
