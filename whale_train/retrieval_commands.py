"""`whale index build`, `whale index search` and `whale serve-retrieval`.

Their arguments are here beside what they do; nothing heavy is imported before they are understood.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from whale_envs.errors import UserError
from whale_envs.processors import processors
from whale_train.options import MOST

if TYPE_CHECKING:
    from whale_envs.tools.retrieval_build import Step


@dataclass(frozen=True)
class BuildConfig:
    """Index a corpus, as a stream. After a kill, the same command goes on where it was."""

    corpus: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CORPUS")]
    """JSONL, plain, .gz or .zst: {id, title, text} or {id, contents} a line."""
    out: Path
    """The index's folder: what `corpus=` in --dataset and `whale serve-retrieval` take."""
    shard: int = 250_000
    """Passages in a shard: a shard is counted in memory, about 0.5 GB for 250,000 passages of 100 words."""

    def __post_init__(self) -> None:
        if not 1 <= self.shard < 1 << 31:  # its passages are numbered in 32 bits
            raise UserError(f"--shard {self.shard}: expected 1 to {(1 << 31) - 1:,}")


@dataclass(frozen=True)
class SearchIndexConfig:
    """Show what a query finds, as a harness would get it."""

    where: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="INDEX")]
    """An index's folder, a corpus file (its index is kept in the user's cache), or a server's URL."""
    query: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="QUERY")]
    """What to search for, in quotes where it has several words."""
    k: int = 3
    """How many passages."""


@dataclass(frozen=True)
class IndexConfig:
    """Index a corpus for search, or try an index."""

    job: (
        Annotated[BuildConfig, tyro.conf.subcommand("build")]
        | Annotated[SearchIndexConfig, tyro.conf.subcommand("search")]
    )


@dataclass(frozen=True)
class ServeRetrievalConfig:
    """Serve an index over HTTP: POST /retrieve in Search-R1's and rLLM's JSON, GET /health."""

    where: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="INDEX")]
    """An index's folder, or a corpus file."""
    host: str = "127.0.0.1"
    """The address to listen on; 0.0.0.0 for all. Nothing asks for a password."""
    port: int = 8000
    """The port to listen on; 0 takes any that is free."""
    retriever: str = "bm25s"
    """Who ranks: bm25s, or rank_bm25 (slow, to compare with)."""
    max_batch: int = 64
    """Most queries that are searched at a time."""
    queue: int = 1024
    """Most queries that wait; the next ones are answered 503."""
    threads: int = processors()
    """Threads that share a batch."""

    def __post_init__(self) -> None:
        if not 0 <= self.port < 1 << 16:
            raise UserError(f"--port {self.port}: expected 0 to 65535")
        for name in ("max_batch", "queue", "threads"):
            if not 1 <= getattr(self, name) <= MOST:
                raise UserError(f"--{name.replace('_', '-')} {getattr(self, name)}: expected 1 to {MOST:,}")


def index(config: IndexConfig) -> int:
    """`whale index`."""
    return _build(config.job) if isinstance(config.job, BuildConfig) else _search(config.job)


def _build(config: BuildConfig) -> int:
    from whale_envs.tools.retrieval_build import build_index

    with _shown() as watch:
        info = build_index(config.corpus, config.out, config.shard, watch)
    shards = f"{len(info.shards)} shard{'s' if len(info.shards) > 1 else ''}"
    print(f"{info.passages:,} passages, {info.terms:,} terms, {shards}")
    print(config.out)
    return 0


def _search(config: SearchIndexConfig) -> int:
    from whale_envs.errors import EpisodeError, ToolUseError
    from whale_envs.tools.retrieval import open_retriever

    try:
        found = open_retriever(config.where).search(config.query, config.k)
    except (ToolUseError, EpisodeError) as error:
        raise UserError(str(error)) from None
    if not found:
        print(f"no passage of {config.where} has a word of {config.query!r}", file=sys.stderr)
    for passage in found:
        print(f"{passage.score:8.4f}  {passage.id}  {passage.title}\n          {' '.join(passage.text.split())[:200]}")
    return 0


def serve_retrieval(config: ServeRetrievalConfig) -> int:
    """`whale serve-retrieval`: until it is interrupted."""
    from whale_envs.tools.retrieval import LocalRetriever, open_retriever
    from whale_envs.tools.retrieval_server import application, bound, serve

    if config.where.startswith(("http://", "https://")):
        raise UserError(f"{config.where} is a server already: expected an index's folder or a corpus file")
    with bound(config.host, config.port) as listening:
        retriever = open_retriever(config.where, config.retriever)
        assert isinstance(retriever, LocalRetriever)
        retriever.search("hello")  # compiles or loads what the first request would wait for
        host, port = listening.getsockname()[:2]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        print(f"{len(retriever.passages):,} passages at http://{address}", flush=True)
        serve(application(retriever, config.max_batch, config.queue, config.threads), listening)
    return 0


@contextmanager
def _shown() -> Iterator[Callable[[Step], None]]:
    """Shows a build's steps on stderr: a bar on a terminal, elsewhere a line every few seconds."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from whale_envs.tools.retrieval_build import printed

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield printed()
        return
    passages = TextColumn("{task.fields[passages]:,} passages")
    columns = (TextColumn("{task.description:<8}"), BarColumn(), TaskProgressColumn(), passages, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("reading", total=None, passages=0)

        def watch(step: Step) -> None:
            bar.update(task, description=step.stage, completed=step.done, total=step.total, passages=step.passages)

        yield watch
