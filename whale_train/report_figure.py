"""The report's figure: test mean@k over cumulative rollouts, one line an arm, with 95 % bands."""

from __future__ import annotations

import io
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from whale_envs.episode import write_atomic
from whale_train.report_data import HARNESS, WEIGHTS, Arm

COLOURS = {"whale": "#1d4e89", "weights-only": "#c8691c", "harness-only": "#2f855a"}
OTHER, INK, FAINT = "#6b4c9a", "#22272e", "#8a939d"
#: Tints of the strip that shows WHALE's phases.
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


def colour(arm: str) -> str:
    """The colour that an arm has everywhere in a report."""
    return COLOURS.get(arm, OTHER)


def draw(arms: Sequence[Arm], title: str) -> Figure:
    """The figure; `arms` have at least one point each."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.6, 5.0), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12)  # type: ignore[union-attr]
        axes = figure.add_subplot()
        _phases(axes, arms)
        for arm in arms:
            _curve(axes, arm)
        top = max(100 * p.high for arm in arms for p in arm.curve)
        bottom = min(100 * p.low for arm in arms for p in arm.curve)
        room = max(4.0, 0.12 * (top - bottom))
        axes.set_ylim(max(0, bottom - room), min(104, top + room))
        axes.set_xlim(left=0)
        _labels(axes, arms)
        k = arms[0].curve[0].k
        axes.set_title(title, loc="left", fontsize=13, fontweight="bold", pad=26)
        axes.set_xlabel("cumulative rollouts (training and search, test not counted)")
        axes.set_ylabel(f"test mean@{k}, %")
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
        axes.grid(axis="y", color="#e3e7eb", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(length=0, pad=6)
        return figure


def png(figure: Figure, path: Path) -> None:
    """Write the figure as a PNG of about 1,500 pixels across, atomically."""
    out = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(out, format="png", dpi=160, facecolor="white")
    write_atomic(path, out.getvalue())


def svg(figure: Figure) -> str:
    """The figure as an inline SVG element that fills its parent's width."""
    out = io.StringIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


def _curve(axes: Axes, arm: Arm) -> None:
    x = [p.rollouts for p in arm.curve]
    tint = colour(arm.name)
    width = 2.4 if arm.name == "whale" else 1.8
    axes.fill_between(
        x, [100 * p.low for p in arm.curve], [100 * p.high for p in arm.curve], color=tint, alpha=0.13, lw=0
    )
    axes.plot(
        x, [100 * p.mean for p in arm.curve], color=tint, lw=width, marker="o", ms=5, mec="white", mew=1.0, zorder=3
    )


def _phases(axes: Axes, arms: Sequence[Arm]) -> None:
    """WHALE's phases as a strip along the top, with a faint line where one ends."""
    whale = next((arm for arm in arms if arm.name == "whale"), None)
    if whale is None:
        return
    edge = axes.get_xaxis_transform()
    for before, after in itertools.pairwise(whale.phases):
        left, right, kind = before.rollouts, after.rollouts, after.kind
        strip = Rectangle((left, 1.0), right - left, 0.045, transform=edge, color=PHASES[kind], lw=0, clip_on=False)
        axes.add_patch(strip)
        axes.axvline(right, color=FAINT, lw=0.7, ls=(0, (1, 3)), zorder=0)
        if (right - left) / max(whale.curve[-1].rollouts, 1) > 0.06:
            middle = (left + right) / 2
            axes.text(middle, 1.021, kind, transform=edge, ha="center", va="center_baseline", fontsize=9, color=INK)


def _labels(axes: Axes, arms: Sequence[Arm]) -> None:
    """Each line's name and last value at its right end, moved apart where they would overlap."""
    low, high = axes.get_ylim()
    gap = 0.062 * (high - low)
    ends = sorted(((100 * arm.curve[-1].mean, arm) for arm in arms), key=lambda end: end[0])
    heights: list[float] = []
    for value, _ in ends:
        heights.append(max(value, heights[-1] + gap) if heights else value)
    right = max(arm.curve[-1].rollouts for arm in arms)
    axes.set_xlim(right=max(right, 1) * 1.02)
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
