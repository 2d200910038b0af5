"""The heat map of a run's matrix: weights down, harnesses across, test means in the cells."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from whale_train.report.figures import COLOURS, FAINT, INK, STYLE

#: From paper to the colour that WHALE has in a report.
TINTS = LinearSegmentedColormap.from_list("whale", ["#f4f7fa", "#8fb3d4", COLOURS["whale"]])
VISITED = "#c8691c"
#: From this share of the scale on, the ink is white.
DARK = 0.72


def draw_matrix(
    means: Sequence[Sequence[float]],
    visited: Sequence[Sequence[bool]],
    weights: Sequence[str],
    harnesses: Sequence[str],
    title: str,
    unit: str,
) -> Figure:
    """The figure; `means` in percent of `unit`, a row for each of `weights`, a column for each of `harnesses`. Cells
    that the run went through are framed."""
    with matplotlib.rc_context(STYLE):
        size = (3.2 + 1.5 * len(harnesses), 1.9 + 0.8 * len(weights))
        figure = Figure(figsize=(max(size[0], 7.2), max(size[1], 3.4)), layout="constrained")
        axes = figure.add_subplot()
        flat = [value for row in means for value in row]
        scale = Normalize(min(flat), max(max(flat), min(flat) + 1))
        axes.imshow(means, cmap=TINTS, norm=scale, aspect="auto")
        for y, row in enumerate(means):
            for x, value in enumerate(row):
                _cell(axes, x, y, value, scale(value), visited[y][x])
        axes.set_xticks(range(len(harnesses)), harnesses)
        axes.set_yticks(range(len(weights)), weights)
        axes.xaxis.tick_top()
        axes.set_xlabel("harness", color=FAINT)
        axes.xaxis.set_label_position("top")
        axes.set_ylabel("weights", color=FAINT)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        figure.suptitle(title, x=0.02, ha="left", fontsize=12, fontweight="bold")
        figure.supxlabel(f"{unit}, %; framed: what the run went through", x=0.98, ha="right", fontsize=9, color=VISITED)
        return figure


def _cell(axes: Axes, x: int, y: int, value: float, share: float, visited: bool) -> None:
    ink = "white" if share > DARK else INK
    axes.text(x, y, f"{value:.1f}", ha="center", va="center", color=ink, fontweight="bold" if visited else "normal")
    if visited:
        axes.add_patch(Rectangle((x - 0.46, y - 0.44), 0.92, 0.88, fill=False, ec=VISITED, lw=2))
