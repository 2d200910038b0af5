"""The report as one HTML page that needs nothing else: styles and figure are inside, nothing is fetched."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from html import escape

from whale_envs import Episode
from whale_train.metrics import Estimate, paired_difference
from whale_train.report_data import Arm, Run
from whale_train.report_figure import colour

#: A table's cell: HTML, or a class and HTML.
Cell = str | tuple[str, str]
#: Tasks whose first and last episodes are shown.
SHOWN = 4

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
  white-space: nowrap; }
th { font-weight: 600; color: var(--soft); font-size: .84rem; vertical-align: bottom; }
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
.talk { white-space: pre-wrap; overflow-wrap: anywhere; max-height: 30rem; overflow-y: auto; }
.talk b { color: var(--soft); font-weight: 600; } .talk b.assistant { color: #1d4e89; } .talk b.tool { color: #2f855a; }
.ok { color: #2f855a; } .bad { color: #b3402a; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1.2rem; font-size: .9rem; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
code { font: .86em ui-monospace, "SF Mono", Menlo, "DejaVu Sans Mono", monospace; }
summary { cursor: pointer; color: var(--soft); font-size: .9rem; }
"""


def page(run: Run, figure: str) -> str:
    """The whole page; `figure` is an SVG element."""
    k = run.arms[0].curve[0].k
    parts = [
        f'<p class="eyebrow">{escape(run.info.kind)} · {escape(run.info.config["domain"])} · seed {run.info.seed}</p>',
        f"<h1>{escape(headline(run))}</h1>",
        f'<p class="note">{escape(_spent(run))}</p>',
        f"<figure>{figure}</figure>",
        f'<p class="note">Points are test mean@{k}; bands are 95 % intervals, Student t over tasks. The test set was'
        " not looked at by training, search or any choice.</p>",
        *_scores(run, k),
        *_harness(run),
        *_behaviours(run),
        *_ledger(run),
        *_episodes(run),
        *_provenance(run),
    ]
    title = f"WHALE report: {run.info.config['domain']}, seed {run.info.seed}"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>\n"
        + "\n".join(parts)
        + "\n</main></body></html>\n"
    )


def headline(run: Run) -> str:
    """The result in one sentence."""
    first = run.arms[0]
    start, end, k = first.curve[0], first.curve[-1], first.curve[0].k
    change = f"from {_percent(start.mean)} to {_percent(end.mean)}"
    text = f"{first.label}: test mean@{k} {change} after {end.rollouts:,} rollouts"
    others = [f"{arm.label} {_percent(arm.curve[-1].mean)}" for arm in run.arms[1:]]
    return text + (f"; {' and '.join(others)}" if others else "")


def _spent(run: Run) -> str:
    seconds = run.result.get("seconds")
    state = (
        f"Finished in {_time(seconds)}." if seconds is not None else "Not finished yet: this is what there is so far."
    )
    shadow = run.result.get("shadow")
    if shadow is None:
        return state
    before, after = _percent(shadow["initial"]["mean@8"]), _percent(shadow["mean@8"])
    return f"{state} On shadow tasks, which no proposer saw: {before} at the start, {after} with the accepted harness."


def _scores(run: Run, k: int) -> Iterable[str]:
    """Where each arm started and ended, and the paired differences between their ends."""
    yield "<h2>Scores</h2>"
    rows = []
    for arm in run.arms:
        start, end = arm.curve[0], arm.curve[-1]
        gain = _difference(arm.scores(0), arm.scores(-1)) if len(arm.curve) > 1 else "–"
        rows.append(
            [_name(arm), f"{end.rollouts:,}", _interval(start.mean, start.low, start.high),
             _interval(end.mean, end.low, end.high), gain]
        )  # fmt: skip
    yield _table(["arm", "rollouts", f"start, mean@{k} %", f"end, mean@{k} %", "gain, points"], rows)
    rows = [
        [f"{_name(a)} minus {_name(b)}", _difference(b.scores(-1), a.scores(-1))]
        for i, a in enumerate(run.arms)
        for b in run.arms[i + 1 :]
    ]
    if rows:
        yield "<h3>Differences at the end</h3>"
        yield _table(["", "points"], rows)
    yield '<p class="note">Differences are paired by task, with 95 % intervals over the tasks\' differences.</p>'
    early = [
        [_name(arm), ended.phase, ("text long", escape(ended.why))]
        for arm in run.arms
        for ended in arm.phases
        if ended.why
    ]
    if early:
        yield "<h3>Phases that ended by themselves</h3>"
        yield _table(["arm", ("text", "phase"), ("text", "why")], early)


def _harness(run: Run) -> Iterable[str]:
    """For the first arm that searched: what the accepted line believed, and the diff against the start."""
    arm = next((a for a in run.arms if a.harness is not None and a.candidates), None)
    if arm is None or arm.harness is None:
        return
    yield f"<h2>The accepted harness of {escape(arm.label)}</h2>"
    changes = "1 change" if len(arm.steps) == 2 else f"{max(0, len(arm.steps) - 1)} changes"
    yield f"<p>{changes} in line, out of {arm.candidates} candidates in the archive.</p>"
    rows: list[list[Cell]] = []
    for step in arm.steps:
        varied, score = escape(", ".join(step.axes)) or "–", "–" if step.score is None else f"{100 * step.score:.1f}"
        rows.append([f"<code>{step.hash}</code>", ("text long", escape(step.hypothesis.strip())), varied, score])
    yield _table(["harness", ("text", "hypothesis"), "varied", "best search score, %"], rows)
    yield from _searched(arm, run.result.get("shadow"))
    if run.start is None:
        yield '<p class="note">The source of the first harness is no longer there, so there is no diff.</p>'
    elif run.start == arm.harness:
        yield "<p>It is the one that the run started from.</p>"
    else:
        yield f'<pre class="diff">{_diff(run.start, arm.harness)}</pre>'


def _searched(arm: Arm, shadow: object) -> Iterable[str]:
    """What each of an arm's searches scored, and how much of that is estimated to be luck."""
    rows: list[list[Cell]] = []
    for done in arm.searched:
        again = "–" if done.confirmed is None else f"{100 * done.confirmed:.1f}"
        score, luck = f"{100 * done.accepted_mean:.1f}", f"{100 * done.optimism:.1f}"
        rows.append([escape(done.phase), ("text", f"<code>{escape(done.accepted)}</code>"), score, luck, again, "–"])
    if not rows:
        return
    if isinstance(shadow, dict):
        rows[-1][-1] = _interval(shadow["mean@8"], *shadow["ci95"])
    heads: list[Cell] = ["search", ("text", "accepted"), "search score, %", "estimated optimism, points"]
    yield _table([*heads, "under fresh seeds, %", "on shadow tasks, %"], rows)
    yield (
        '<p class="note">The best of many scores is partly luck. The optimism is the bootstrap\'s estimate (over tasks)'
        " of how much too high the best score of the phase is.</p>"
    )


def _diff(old: str, new: str) -> str:
    lines = list(difflib.unified_diff(old.splitlines(), new.splitlines(), "start", "accepted", n=3, lineterm=""))
    kinds = {"+": "a", "-": "d", "@": "h"}
    marked = [("h" if i < 2 else kinds.get(line[:1], ""), line) for i, line in enumerate(lines)]
    return "".join(f'<span class="{kind}">{escape(line)}</span>' for kind, line in marked)


def _behaviours(run: Run) -> Iterable[str]:
    """How often each behaviour was seen at the start and at each arm's end."""
    start = run.arms[0].behaviours(0)
    ends = [(arm, arm.behaviours(-1)) for arm in run.arms if len(arm.curve) > 1]
    names = list(dict.fromkeys([*start, *(name for _, end in ends for name in end)]))
    if not names:
        return
    yield "<h2>Behaviours</h2>"
    rows = [
        [escape(name.replace("_", " ")), _rate(start.get(name), "#8a939d")]
        + [_rate(end.get(name), colour(arm.name)) for arm, end in ends]
        for name in names
    ]
    yield _table(["share of test episodes, %", "start", *(_name(arm) for arm, _ in ends)], rows)


def _ledger(run: Run) -> Iterable[str]:
    """What each arm spent, by kind."""
    rows: list[list[Cell]] = []
    for arm in run.arms:
        for i, (kind, spent) in enumerate(arm.ledger.items()):
            counts = (spent.rollouts, spent.prompt_tokens, spent.sampled_tokens, spent.trained_tokens)
            rows.append(
                [_name(arm) if i == 0 else "", ("text", kind), *(f"{n:,}" for n in counts), _time(spent.seconds)]
            )
            rows[-1].append(f"${spent.dollars:.2f}")
    if rows:
        yield "<h2>What it cost</h2>"
        heads = [
            "arm",
            ("text", "kind"),
            "rollouts",
            "prompt tokens",
            "sampled tokens",
            "trained tokens",
            "time",
            "dollars",
        ]
        yield _table(heads, rows)


def _episodes(run: Run) -> Iterable[str]:
    """The same test tasks at the start and at the end of the first arm."""
    arm = run.arms[0]
    if len(arm.curve) < 2:
        return
    pairs = pick(arm.episodes(0), arm.episodes(-1))
    if not pairs:
        return
    yield f"<h2>Episodes of {escape(arm.label)}, first and last</h2>"
    yield '<p class="note">Tasks won, lost and neither; the same repeat of the same task each time.</p>'
    for before, after in pairs:
        yield f'<h3>{escape(before.task_id)}</h3><div class="pair">'
        for when, episode in (("start", before), ("end", after)):
            mark = '<span class="ok">right</span>' if episode.score > 0.5 else '<span class="bad">wrong</span>'
            yield f'<div><div class="note">{when} · {mark}</div><pre class="talk">{_talk(episode)}</pre></div>'
        yield "</div>"


def pick(before: Sequence[Episode], after: Sequence[Episode]) -> list[tuple[Episode, Episode]]:
    """Up to `SHOWN` pairs of the same task and seed, one a task: won ones first, one lost, one neither, more won."""
    last = {(e.task_id, e.seed): e for e in after}
    pairs = [(e, last[e.task_id, e.seed]) for e in before if (e.task_id, e.seed) in last]
    tasks: set[str] = set()
    kinds: dict[str, list[tuple[Episode, Episode]]] = {"won": [], "lost": [], "wrong": [], "right": []}
    for first, second in pairs:
        kind = {(False, True): "won", (True, False): "lost", (False, False): "wrong"}.get(
            (first.score > 0.5, second.score > 0.5), "right"
        )
        if first.task_id not in tasks and len(kinds[kind]) < SHOWN:
            tasks.add(first.task_id)
            kinds[kind].append((first, second))
    best = kinds["won"][:2] + kinds["lost"][:1] + kinds["wrong"][:1]
    return (best + kinds["won"][2:] + kinds["right"])[:SHOWN]


def _talk(episode: Episode) -> str:
    text = escape(episode.transcript())
    return re.sub(r"^\[(system|user|assistant|tool)\] ", r'<b class="\1">\1</b>  ', text, flags=re.MULTILINE)


def _provenance(run: Run) -> Iterable[str]:
    info = run.info
    yield "<h2>Where it comes from</h2>"
    yield f"<pre>{escape(info.command)}</pre>"
    facts = {
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


def _difference(a: dict[str, list[float]], b: dict[str, list[float]]) -> str:
    if not a or not b:
        return "–"
    found: Estimate = paired_difference(a, b)
    sign = "ok" if found.low > 0 else "bad" if found.high < 0 else ""
    span = f'<span class="range">[{100 * found.low:+.1f}, {100 * found.high:+.1f}]</span>'
    return f'<span class="{sign}">{100 * found.mean:+.1f}</span> {span}'


def _interval(mean: float, low: float, high: float) -> str:
    return f'{100 * mean:.1f} <span class="range">[{100 * low:.1f}, {100 * high:.1f}]</span>'


def _rate(rate: float | None, tint: str) -> str:
    if rate is None:
        return "–"
    return f'{100 * rate:.1f}<span class="bar"><i style="width:{100 * rate:.0f}%;background:{tint}"></i></span>'


def _name(arm: Arm) -> str:
    return f'<span class="dot" style="background:{colour(arm.name)}"></span>{escape(arm.label)}'


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min {rest:02d} s"


def _table(heads: Sequence[Cell], rows: Sequence[Sequence[Cell]]) -> str:
    """A table of HTML cells; a cell with a class is a pair (class, HTML)."""
    head = "".join(_cell("th", h) for h in heads)
    body = "".join(f"<tr>{''.join(_cell('td', c) for c in row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(tag: str, cell: Cell) -> str:
    kind, html = cell if isinstance(cell, tuple) else ("", cell)
    return f'<{tag} class="{kind}">{html}</{tag}>' if kind else f"<{tag}>{html}</{tag}>"
