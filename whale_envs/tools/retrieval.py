"""BM25 retrieval over passages, held in memory (bm25s; Lù 2024, Lucene's variant of BM25)."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable

import bm25s
import numpy as np

from whale_envs.errors import ToolUseError, UserError
from whale_envs.harness.helpers import Passage

#: Most passages one search returns; more would be a way to read the corpus, not to search it.
MAX_PASSAGES = 20


def tokens(text: str) -> list[str]:
    """Words without case and accents, the same for passages and queries."""
    plain = unicodedata.normalize("NFKD", text)
    return re.findall(r"\w+", "".join(c for c in plain if not unicodedata.combining(c)).casefold())


class Retriever:
    """Finds passages by BM25. Ties keep the corpus's order, so a query's result never varies.

    Raises `UserError` for a corpus without a passage.
    """

    def __init__(self, passages: Iterable[Passage]) -> None:
        self.passages = list(passages)
        if not self.passages:
            raise UserError("the corpus holds no passage: expected at least one row with text or contents")
        self._index = bm25s.BM25(backend="numpy")
        self._index.index([tokens(f"{p.title} {p.text}") or [""] for p in self.passages], show_progress=False)
        self._known = self._index.vocab_dict
        # the same query comes back for every rollout of a group
        self._search = functools.lru_cache(maxsize=65_536)(self._ranked)

    def search(self, query: str, k: int = 1) -> list[Passage]:
        """The best `k` passages that share a word with `query`, best first.

        Raises `ToolUseError` when `query` is not a string or `k` not between 1 and `MAX_PASSAGES`.
        """
        if not isinstance(query, str):
            raise ToolUseError(f"search takes a query string, not {type(query).__name__}")
        if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= MAX_PASSAGES:
            raise ToolUseError(f"search takes k from 1 to {MAX_PASSAGES}, not {k!r}")
        return list(self._search(query, k))

    def _ranked(self, query: str, k: int) -> tuple[Passage, ...]:
        words = [w for w in tokens(query) if w in self._known]
        if not words:
            return ()
        scores = self._index.get_scores(words)
        found = np.flatnonzero(scores > 0)
        best = found[np.argsort(-scores[found], kind="stable")[:k]]
        return tuple(
            Passage(p.id, p.title, p.text, round(float(scores[i]), 4)) for i in best for p in (self.passages[i],)
        )
