"""What pages are made of: their style, tables, numbers with intervals, diffs. A page fetches nothing and runs nothing.

What comes from outside (a hypothesis, a reply, a path) is escaped where it enters a page.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from html import escape

from whale_train.metrics import Estimate

#: A table's cell: HTML, or a class and HTML.
Cell = str | tuple[str, str]
#: Text in a cell: aligned left, and broken where it is long.
TEXT, LONG = "text", "text long"

STYLE = """
:root { --ink: #22272e; --soft: #59636e; --line: #dfe4e8; --paper: #ffffff; --tint: #f6f8f9; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); line-height: 1.55;
  font: 16px/1.55 Inter, "Helvetica Neue", Arial, "DejaVu Sans", sans-serif; }
main { max-width: 68rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.65rem; line-height: 1.25; margin: .2rem 0 .6rem; max-width: 46rem; }
h2 { font-size: 1.15rem; margin: 3rem 0 .6rem; }
h3 { font-size: .95rem; margin: 1.4rem 0 .4rem; }
p { max-width: 46rem; margin: .4rem 0; }
.eyebrow, .note, footer { color: var(--soft); font-size: .88rem; }
.eyebrow { letter-spacing: .02em; }
figure { margin: 1.6rem 0 0; } figure svg { width: 100%; height: auto; display: block; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; }
th, td { padding: .38rem 1.4rem .38rem 0; border-bottom: 1px solid var(--line); text-align: right;
  vertical-align: top; white-space: nowrap; }
th { font-weight: 600; color: var(--soft); font-size: .84rem; vertical-align: bottom; }
tr.groups th { border-bottom: 0; padding-bottom: 0; color: var(--ink); }
tr.total td { font-weight: 600; }
th:first-child, td:first-child { text-align: left; }
th.text, td.text { text-align: left; } td.text.long { white-space: normal; min-width: 16rem; }
.range { color: var(--soft); font-size: .85em; }
.dot { display: inline-block; width: .6em; height: .6em; border-radius: 50%; margin-right: .5em; }
.bar { display: inline-block; width: 5rem; height: .45rem; background: var(--line); border-radius: 3px;
  margin-left: .6rem; vertical-align: .08em; overflow: hidden; }
.bar i { display: block; height: 100%; }
pre { font: .8rem/1.5 ui-monospace, "SF Mono", Menlo, "DejaVu Sans Mono", monospace; background: var(--tint);
  border: 1px solid var(--line); border-radius: 6px; padding: .8rem 1rem; margin: .5rem 0; overflow-x: auto; }
pre.diff span { display: block; min-height: 1.5em; }
pre.diff .a { background: #dff3e4; } pre.diff .d { background: #fbe4e1; }
pre.diff .h { color: var(--soft); }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 1rem; } .pair > div { min-width: 0; }
@media (max-width: 46rem) { .pair { grid-template-columns: 1fr; } main { padding-top: 1.5rem; } }
.talk { white-space: pre-wrap; overflow-wrap: anywhere; max-height: 24rem; overflow-y: auto; }
.talk b { color: var(--soft); font-weight: 600; } .talk b.assistant { color: #1d4e89; } .talk b.tool { color: #2f855a; }
.ok { color: #2f855a; } .bad { color: #b3402a; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1.2rem; font-size: .9rem; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
code { font: .86em ui-monospace, "SF Mono", Menlo, "DejaVu Sans Mono", monospace; }
details { margin: .3rem 0; } summary { cursor: pointer; color: var(--soft); font-size: .9rem; }
"""


def shell(title: str, parts: Iterable[str]) -> str:
    """The whole page around its parts."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>\n"
        + "\n".join(parts)
        + "\n</main></body></html>\n"
    )


def note(text: str) -> str:
    """A remark in small print; plain text."""
    return f'<p class="note">{escape(text)}</p>'


def figure(svg: str) -> str:
    """A figure, from an SVG element."""
    return f"<figure>{svg}</figure>"


def folded(summary: str, *parts: str, open: bool = False) -> str:
    """What opens when its summary (HTML) is clicked, or is `open` and closes."""
    return f"<details{' open' * open}><summary>{summary}</summary>{''.join(parts)}</details>"


def table(
    heads: Sequence[Cell],
    rows: Iterable[Sequence[Cell]],
    groups: Sequence[tuple[str, int]] = (),
    total: bool = False,
) -> str:
    """A table of HTML cells.

    `groups` are headings above the heads, each over so many columns; with `total` the last row is set off.
    """
    over = "".join(f'<th class="{TEXT}" colspan="{width}">{name}</th>' for name, width in groups)
    head = (f'<tr class="groups">{over}</tr>' if over else "") + _row("th", heads)
    body = [_row("td", row) for row in rows]
    if total and body:
        body[-1] = body[-1].replace("<tr>", '<tr class="total">', 1)
    return f'<div class="wide"><table><thead>{head}</thead><tbody>{"".join(body)}</tbody></table></div>'


def _row(tag: str, cells: Sequence[Cell]) -> str:
    pairs = [cell if isinstance(cell, tuple) else ("", cell) for cell in cells]
    made = (f'<{tag} class="{kind}">{html}</{tag}>' if kind else f"<{tag}>{html}</{tag}>" for kind, html in pairs)
    return f"<tr>{''.join(made)}</tr>"


def named(label: str, tint: str) -> str:
    """What a figure shows as a line of this colour."""
    return f'<span class="dot" style="background:{tint}"></span>{escape(label)}'


def percent(share: float) -> str:
    """A share as a percentage, for running text."""
    return f"{100 * share:.1f} %"


def number(share: float | None) -> str:
    """A share as a percentage, for a column that says so; a dash where there is none."""
    return "–" if share is None else f"{100 * share:.1f}"


def interval(mean: float, low: float, high: float) -> str:
    """A mean and its 95 % interval, as percentages."""
    return f'{100 * mean:.1f} <span class="range">[{100 * low:.1f}, {100 * high:.1f}]</span>'


def span(found: Estimate | None) -> str:
    """A 95 % interval, as percentages; a dash where there is none, or nothing to tell it from."""
    if found is None or found.tasks < 2:
        return "–"
    return f'<span class="range">[{100 * found.low:.1f}, {100 * found.high:.1f}]</span>'


def difference(found: Estimate | None) -> str:
    """A difference in points with its 95 % interval, coloured where that leaves out 0."""
    if found is None or found.tasks < 2:
        return "–"
    sign = "ok" if found.low > 0 else "bad" if found.high < 0 else ""
    width = f'<span class="range">[{100 * found.low:+.1f}, {100 * found.high:+.1f}]</span>'
    return f'<span class="{sign}">{100 * found.mean:+.1f}</span> {width}'


def bar(share: float | None, tint: str) -> str:
    """A share as a number and a bar."""
    if share is None:
        return "–"
    return f'{100 * share:.1f}<span class="bar"><i style="width:{100 * share:.0f}%;background:{tint}"></i></span>'


def duration(seconds: float) -> str:
    """A time as people say it."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min {rest:02d} s"


def diff(old: str, new: str, before: str, after: str) -> str:
    """The change from one source to another, line by line; `before` and `after` are what they are called."""
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), before, after, n=3, lineterm="")
    kinds = {"+": "a", "-": "d", "@": "h"}
    marked = [("h" if i < 2 else kinds.get(line[:1], ""), line) for i, line in enumerate(lines)]
    spans = "".join(f'<span class="{kind}">{escape(line)}</span>' for kind, line in marked)
    return f'<pre class="diff">{spans}</pre>'
