"""`whale data prepare`: progress on the screen, and what came of it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from whale_envs.data.prepare import hub_of, prepare
from whale_envs.data.reader import Progress as Told
from whale_envs.data.reader import Watch
from whale_envs.errors import UserError


def prepare_data(
    domain: str, source: str, out: Path, seed: int, revisions: Sequence[str], verifier: str | None, corpus: bool
) -> int:
    """Prepare a folder, say what is in it, and where it is; returns the exit code."""
    by_repo = dict(_revision(given) for given in revisions)
    hub = hub_of(source, by_repo)
    if corpus and (domain != "search-qa" or hub is None):
        raise UserError("--corpus is the hub's corpus of search-qa: give it with `search-qa --source hub`")
    if hub is not None and not sys.stderr.isatty():
        _no_bars()
    with watching() as watch:
        card = prepare(domain, source, out, seed, by_repo, watch, verifier)
    print(f"{card.rows:,} rows: {', '.join(f'{part.tasks:,} {split}' for split, part in card.splits.items())}")
    for reason, rows in sorted(card.dropped.items(), key=lambda item: -item[1]):
        print(f"  {rows:>10,}  {reason}")
    if corpus and hub is not None:
        print(hub.fetch_corpus(out / "corpus"))
    print(out)
    return 0


@contextlib.contextmanager
def watching() -> Iterator[Watch]:
    """A `Watch` that draws a bar for each source on a terminal, and prints a line for each elsewhere."""
    console = Console(file=sys.stderr, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:

        def watch(what: str, rows: int | None) -> Told:
            if not console.is_terminal:
                console.print(f"reading {what}" + (f", {rows:,} rows" if rows else ""), soft_wrap=True, markup=False)
            bar = bars.add_task(what, total=rows)
            return lambda read: bars.advance(bar, read)

        yield watch


def _no_bars() -> None:
    """The hub's libraries draw bars of downloads where there is no terminal, too."""
    import datasets
    from huggingface_hub.utils.tqdm import disable_progress_bars

    datasets.disable_progress_bars()
    disable_progress_bars()


def _revision(given: str) -> tuple[str, str]:
    repo, _, revision = given.partition("=")
    if not repo or not revision:
        raise UserError(f"--revision {given}: expected REPO=REVISION, as in Lichess/chess-puzzles=main")
    return repo, revision
