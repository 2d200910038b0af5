"""`whale archive`, `whale diff` and `whale episode`: looking at what a search has tried, in the terminal.

They read a run folder, one arm's folder, or an archive, while it grows or afterwards, and write nothing.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path

from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from whale_envs import Episode
from whale_envs.episode import read_episodes
from whale_envs.errors import UserError
from whale_train.meta_harness.acceptance import fresh, sign_test
from whale_train.meta_harness.archive import EPISODES, Archive, read_archive
from whale_train.meta_harness.records import Candidate, Outcome, Score, ScoreKey, last_rounds
from whale_train.tables import output

#: Generations that are shown further and further in; what comes after stands below each other.
DEEPEST = 16
#: Tasks of each kind that a comparison lists.
LISTED = 12


def show_archive(run: Path) -> int:
    """`whale archive`: the lineage of every archive under a run folder."""
    console = output()
    for archive in archives(run):
        refused = sum(bool(c.gate) for c in archive.candidates)
        scored = [s for c in archive.candidates for s in c.scores.values()]
        console.print(
            f"[bold]{archive.folder}[/]: {len(archive.candidates)} harnesses, {refused} refused, "
            f"{sum(s.n for s in scored):,} rollouts, {len(archive.rounds)} rounds; accepted {archive.accepted}"
        )
        for line in (*_lineage(archive), *_accepted(archive), *_frontier(archive)):
            console.print(line)
    return 0


def compare(run: Path, one: str, other: str) -> int:
    """`whale diff`: the code and the outcomes of two harnesses, each given by its hash or the beginning of it."""
    console = output()
    archive, a, b = _both(archives(run), one, other)
    sources = [archive.source(c.hash).splitlines() for c in (a, b)]
    diff = "\n".join(difflib.unified_diff(*sources, a.hash, b.hash, lineterm=""))
    console.print(Syntax(diff or "the same source", "diff", background_color="default", word_wrap=True))
    for key in [key for key in a.scores if key in b.scores]:
        console.print(f"\nunder {key} (weights-data-seed)")
        console.print(_outcomes(archive, a, b, key))
    if not a.scores.keys() & b.scores.keys():
        console.print("never scored under the same weights, data and seed: there are no tasks to compare")
    return 0


def show_episode(run: Path, name: str) -> int:
    """`whale episode`: the transcripts of HARNESS/TASK, or of TASK under every harness."""
    harness, _, task = name.rpartition("/")
    found = list(_episodes(run, harness, task))
    if not found:
        raise UserError(f"no episode {name!r} in {run}: expected HARNESS/TASK as `whale diff` lists them, or a task id")
    print("\n\n".join(f"{path}\n{episode.transcript()}" for path, episode in found))
    return 0


def archives(run: Path) -> list[Archive]:
    """The archives under a folder. Raises `UserError` when there is none."""
    if not run.exists():
        raise UserError(f"no folder {run}: give one that `whale run` or `whale search` made")
    places = [run] if (run / "archive.json").exists() else [run / "archive", *sorted(run.glob("arms/*/archive"))]
    found = [read_archive(place) for place in places if (place / "archive.json").exists()]
    if not found:
        raise UserError(f"{run} has no archive of harnesses: give a folder that `whale run` or `whale search` made")
    return found


def _accepted(archive: Archive) -> Iterator[Text]:
    """A line for each phase: what it accepted, and how much of the score is estimated to be luck."""
    for done in last_rounds(archive.rounds):
        again = "" if done.confirmed is None else f", {100 * done.confirmed:.1f} % under fresh seeds"
        yield Text(
            f"{done.phase}: accepted {done.accepted} at {100 * done.accepted_mean:.1f} %{again}; the best score is "
            f"estimated to be {100 * done.optimism:.1f} points too high",
            style="dim",
        )


def _frontier(archive: Archive) -> Iterator[Text]:
    """A line for each harness that solves what the best of the current phase does not."""
    for hash, tasks in archive.frontier().items():
        shown = ", ".join(tasks[:LISTED]) + (", ..." if len(tasks) > LISTED else "")
        yield Text(
            f"frontier: {hash} solves {len(tasks)} more tasks: {shown}", "dim", no_wrap=True, overflow="ellipsis"
        )


def _lineage(archive: Archive) -> Iterator[Text]:
    """A line for each candidate, under the first of its parents and further in than that, the oldest first."""
    children: dict[str, list[Candidate]] = {"": []}
    for candidate in archive.candidates:  # a parent is older than its children: no circle comes of a damaged index
        parent = candidate.parents[0] if candidate.parents and candidate.parents[0] in children else ""
        children[parent].append(candidate)
        children[candidate.hash] = []
    waiting = [(candidate, 0) for candidate in reversed(children[""])]
    while waiting:
        candidate, depth = waiting.pop()
        waiting += [(child, depth + 1) for child in reversed(children[candidate.hash])]
        yield Text("  " * min(depth, DEEPEST), no_wrap=True, overflow="ellipsis").append(_line(archive, candidate))


def _line(archive: Archive, candidate: Candidate) -> Text:
    accepted = candidate.hash == archive.accepted
    line = Text()
    line.append(candidate.hash, "bold green" if accepted else "bold")
    if accepted:
        line.append(" accepted", "green")
    again = {str(fresh(ScoreKey.named(name))) for name in candidate.scores}
    for name, score in candidate.scores.items():
        line.append(f" {100 * score.mean:.1f} ± {196 * score.se:.1f} %", "cyan")
        line.append(" under fresh seeds" if name in again else "")
        line.append(f" of {score.n}{', dropped' if score.dropped else ''}, {score.turns:.1f} turns{_cost(score)}")
    if candidate.gate:
        line.append(f" refused, {candidate.gate}", "red")
    if len(candidate.parents) > 1:
        line.append(f" with {', '.join(candidate.parents[1:])}")
    first, _, _ = candidate.hypothesis.strip().partition("\n")
    line.append(f" · {first}", "dim")
    return line


def _cost(score: Score) -> str:
    """What a score took beside its rollouts: thousands of tokens, and dollars where services took any."""
    tokens = f", {(score.prompt_tokens + score.sampled_tokens) / 1000:,.0f}k tokens" if score.prompt_tokens else ""
    return tokens + (f", ${score.dollars:.2f}" if score.dollars else "")


def _outcomes(archive: Archive, a: Candidate, b: Candidate, key: str) -> Table | str:
    """Tasks won and lost by `b` against `a`, with the verdicts' reasons; a line where there are none."""
    before, after = archive.outcomes(a.hash, key), archive.outcomes(b.hash, key)
    for candidate, found in ((a, before), (b, after)):
        if len(found) < (count := candidate.scores[key].n):
            path = archive.files(candidate.hash) / "outcomes.jsonl"
            return f"outcomes are missing: {path} has {len(found)} of {count} tasks under this key"
    shared = [task for task in before if task in after]
    won = [t for t in shared if after[t].score > before[t].score]
    lost = [t for t in shared if after[t].score < before[t].score]
    means = f"{a.hash} {_mean(before)}, {b.hash} {_mean(after)} on {len(shared)} tasks"
    if not won and not lost:
        return f"{means}: no task differs"
    chance = sign_test(after, before)
    table = Table(
        title=f"{means}: {len(won)} won, {len(lost)} lost (sign test p = {chance:.3g})",
        title_justify="left",
    )
    for head in ("", "episode", f"under {a.hash}", f"under {b.hash}"):
        table.add_column(head, overflow="fold")
    for kind, tasks in (("won", won), ("lost", lost)):
        for task in tasks[:LISTED]:
            table.add_row(kind, f"{b.hash}/{task}", before[task].reason, after[task].reason)
        if len(tasks) > LISTED:
            table.add_row("", f"and {len(tasks) - LISTED} more {kind}", "", "")
    return table


def _mean(outcomes: dict[str, Outcome]) -> str:
    return f"{100 * sum(o.score for o in outcomes.values()) / max(1, len(outcomes)):.1f} %"


def _both(found: list[Archive], a: str, b: str) -> tuple[Archive, Candidate, Candidate]:
    """The archive that has both harnesses, and the two; of several arms' one where both have played the same tasks."""
    having: list[tuple[Archive, Candidate, Candidate]] = []
    for archive in found:
        pairs = [[c for c in archive.candidates if c.hash.startswith(name)] for name in (a, b)]
        if all(len(pair) == 1 for pair in pairs):
            having.append((archive, pairs[0][0], pairs[1][0]))
    if having:
        return max(having, key=lambda both: bool(both[1].scores.keys() & both[2].scores.keys()))
    where = ", ".join(str(archive.folder) for archive in found)
    raise UserError(f"no archive has one harness {a!r} and one {b!r} ({where}): `whale archive` lists them")


def _episodes(run: Path, harness: str, task: str) -> Iterator[tuple[Path, Episode]]:
    """Episodes of a task in archives and tests, each with the file that it is in."""
    packed = [path for archive in archives(run) for path in archive.folder.glob(f"candidates/*/{EPISODES}")]
    for path in sorted([*packed, *run.glob("test/*/episodes.jsonl")]):
        for episode in read_episodes(path):
            if episode.task_id == task and episode.harness.startswith(harness):
                yield path, episode
