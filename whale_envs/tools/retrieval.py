"""BM25 retrieval over passages: Lucene's variant, computed ahead of time for each term and passage by bm25s (Lù 2024,
arXiv 2407.03618). Where passages come from (memory, an index folder, a server) makes no difference to what is found.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import bm25s
import numpy as np
import rank_bm25
from numpy.typing import NDArray

from whale_envs.data.corpus import read_corpus
from whale_envs.data.kept import kept
from whale_envs.errors import ToolUseError, UserError, unknown
from whale_envs.harness.helpers import Passage
from whale_envs.tools.retrieval_index import (
    K1,
    B,
    HeldPassages,
    Passages,
    Shard,
    StoredIndex,
    StoredPassages,
    cached_index,
)
from whale_envs.tools.retrieval_kernel import best
from whale_envs.tools.retrieval_tokens import passage_tokens, tokens

#: Most passages one search returns; more would be a way to read the corpus, not to search it.
MAX_PASSAGES = 20
#: Who can rank, the default first.
BACKENDS = ("bm25s", "rank_bm25")

#: The rows found for each query, best first, and their scores; rows past the last one found are -1.
Ranking = tuple[NDArray[np.int64], NDArray[np.floating]]


class Retriever(ABC):
    """Finds passages. A query's result never varies: ties keep the corpus's order."""

    def __init__(self) -> None:
        # the same query comes back for every rollout of a group
        self._found = functools.lru_cache(maxsize=4096)(self._find)

    def search(self, query: str, k: int = 1) -> list[Passage]:
        """The best `k` passages that share a word with `query`, best first.

        Raises `ToolUseError` when `query` is not a string or `k` not between 1 and `MAX_PASSAGES`.
        """
        if not isinstance(query, str):
            raise ToolUseError(f"search takes a query string, not {type(query).__name__}")
        if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= MAX_PASSAGES:
            raise ToolUseError(f"search takes k from 1 to {MAX_PASSAGES}, not {k!r}")
        return list(self._found(query, k))

    def _find(self, query: str, k: int) -> tuple[Passage, ...]:
        return tuple(self.search_batch([query], k)[0])

    @abstractmethod
    def search_batch(self, queries: Sequence[str], k: int, threads: int = 1) -> list[list[Passage]]:
        """What `search` finds for each query; `k` is 1 or more, without a limit."""


class LocalRetriever(Retriever):
    """A retriever that has its passages at hand."""

    def __init__(self, passages: StoredPassages | Iterable[Passage]) -> None:
        super().__init__()
        self.passages: Passages = passages if isinstance(passages, StoredPassages) else HeldPassages(passages)
        if not len(self.passages):
            raise UserError("the corpus holds no passage: expected at least one row with text or contents")

    @abstractmethod
    def rank(self, queries: Sequence[Sequence[str]], k: int, threads: int = 1) -> Ranking:
        """The best `k` passages for each tokenised query: rows and scores, of shape (queries, k)."""

    def search_batch(self, queries: Sequence[str], k: int, threads: int = 1) -> list[list[Passage]]:
        """See `Retriever.search_batch`. So many threads share the queries."""
        rows, scores = self.rank([tokens(q) for q in queries], k, threads)
        passage = self.passages.scored
        return [
            [passage(row, round(score, 4)) for row, score in zip(found, scored, strict=True) if row >= 0]
            for found, scored in zip(rows.tolist(), scores.tolist(), strict=True)
        ]


class BM25Retriever(LocalRetriever):
    """Ranks by bm25s's scores, with numba. Use `of` or `open`."""

    def __init__(
        self, passages: StoredPassages | Iterable[Passage], vocabulary: dict[str, int], shards: Sequence[Shard]
    ) -> None:
        super().__init__(passages)
        self.vocabulary, self.shards = vocabulary, shards

    @classmethod
    def of(cls, passages: Iterable[Passage]) -> BM25Retriever:
        """Index passages in memory. Raises `UserError` when there are none."""
        kept = list(passages)
        index = bm25s.BM25(k1=K1, b=B, method="lucene")
        if kept:
            index.index([passage_tokens(p) for p in kept], show_progress=False)
            return cls(kept, index.vocab_dict, [Shard.of(index.scores, first=0)])
        return cls(kept, {}, [])

    @classmethod
    def open(cls, folder: Path) -> BM25Retriever:
        """Open what `whale index build` wrote, memory-mapped. Raises `UserError` when it is no finished index."""
        stored = StoredIndex(folder)
        return cls(stored.passages, stored.vocabulary(), stored.shards())

    def rank(self, queries: Sequence[Sequence[str]], k: int, threads: int = 1) -> Ranking:
        """See `LocalRetriever.rank`."""
        known = self.vocabulary
        terms = [[known[word] for word in query if word in known] for query in queries]
        flat = np.array(list(itertools.chain.from_iterable(terms)), np.int32)
        starts = np.array(list(itertools.accumulate(map(len, terms), initial=0)), np.int64)
        rows, scores = np.full((len(queries), k), -1, np.int64), np.zeros((len(queries), k), np.float32)

        def fill(at: int, end: int) -> None:
            mine = flat, starts[at : end + 1], rows[at:end], scores[at:end]
            for s in self.shards:  # in the corpus's order, which ties keep
                best(s.data, s.indices, s.indptr, s.passages, s.first, *mine)

        if threads == 1 or len(queries) < 2 * threads:
            fill(0, len(queries))
        else:
            ends = np.linspace(0, len(queries), threads + 1).astype(int).tolist()
            list(_pool(threads, os.getpid()).map(fill, ends[:-1], ends[1:]))
        return rows, scores


@functools.cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Threads that stay for the next batch; those of a process are not there in what is forked from it."""
    return ThreadPoolExecutor(threads)


class ReferenceRetriever(LocalRetriever):
    """Ranks by rank_bm25: slow, in memory, and of plain Python, to compare with."""

    def __init__(self, passages: StoredPassages | Iterable[Passage]) -> None:
        super().__init__(passages)
        self._index = _LuceneOkapi([passage_tokens(p) for p in self.passages], k1=K1, b=B)

    def rank(self, queries: Sequence[Sequence[str]], k: int, threads: int = 1) -> Ranking:
        """See `LocalRetriever.rank`; plain Python does not gain from threads, so it takes none."""
        rows, scores = np.full((len(queries), k), -1, np.int64), np.zeros((len(queries), k))
        for q, query in enumerate(queries):
            # Okapi has a factor of k1 + 1 that Lucene left out, since it changes no order
            scored = self._index.get_scores(query) / (K1 + 1)
            found = np.argsort(-scored, kind="stable")[: min(k, np.count_nonzero(scored > 0))]
            rows[q, : len(found)], scores[q, : len(found)] = found, scored[found]
        return rows, scores


class _LuceneOkapi(rank_bm25.BM25Okapi):  # type: ignore[misc]
    """rank_bm25's Okapi with Lucene's inverse document frequency, which is never negative."""

    def _calc_idf(self, nd: dict[str, int]) -> None:
        self.idf = {word: math.log(1 + (self.corpus_size - n + 0.5) / (n + 0.5)) for word, n in nd.items()}


def open_retriever(where: str, backend: str = BACKENDS[0]) -> Retriever:
    """The retriever over a corpus file, an index folder, or a server's URL.

    A corpus file is indexed once, into the user's cache, and is never held in memory whole; rank_bm25, which knows no
    files, holds all passages. Who asks for the same file or folder again gets the same retriever, unless it was
    changed. Raises `UserError` for what cannot be read or reached.
    """
    if backend not in BACKENDS:
        raise unknown("retriever", backend, BACKENDS)
    if where.startswith(("http://", "https://")):
        from whale_envs.tools.retrieval_client import RemoteRetriever

        if backend != BACKENDS[0]:
            raise UserError(f"retriever={backend} with {where}: a server chooses its own; leave retriever= out")
        return RemoteRetriever(where)
    return _opened(where, backend)


@kept
def _opened(path: Path, backend: str) -> LocalRetriever:
    if backend == "rank_bm25":
        return ReferenceRetriever(StoredIndex(path).passages if path.is_dir() else read_corpus(path))
    return BM25Retriever.open(path if path.is_dir() else cached_index(path))
