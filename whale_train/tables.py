"""Results on the terminal: where they are printed, tables of them, and an estimate as people read it."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from whale_train.metrics import Estimate

#: Columns of a line where the output is no terminal: a pipe has no edge.
WIDTH = 160


def output() -> Console:
    """Where a command prints its results."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDTH)


def table(first: str, *heads: str) -> Table:
    """A table without lines: its first column has names, the others numbers."""
    made = Table(first, box=None, pad_edge=False, padding=(0, 2))
    for head in heads:
        made.add_column(head, justify="right")
    return made


def level(estimate: Estimate, style: str = "") -> Text:
    """A mean in percent with its interval."""
    return Text(f"{100 * estimate.mean:.1f} [{100 * estimate.low:.1f}, {100 * estimate.high:.1f}]", style)


def change(estimate: Estimate | None) -> Text:
    """A difference in points with its interval, green where it lies above 0, red where below; a dash for None."""
    if estimate is None:
        return Text("–")
    style = "green" if estimate.low > 0 else "red" if estimate.high < 0 else ""
    return Text(f"{100 * estimate.mean:+.1f} [{100 * estimate.low:+.1f}, {100 * estimate.high:+.1f}]", style)
