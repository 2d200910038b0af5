"""The two loops of retrieval that are worth compiling, by numba.

They run without the GIL, in the thread that calls them: numba's own threads are never started, so a process that has
searched can still be forked. What is compiled is kept on disk beside this file or, where that cannot be written, in
the user's cache (`NUMBA_CACHE_DIR` says where else); without either, each process compiles for itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np


def _best(
    data: Any, indices: Any, indptr: Any, passages: int, first: int, terms: Any, starts: Any, rows: Any, best: Any
) -> None:
    scores = np.zeros(passages, np.float32)
    last = best.shape[1] - 1
    for q in range(len(starts) - 1):
        for term in terms[starts[q] : starts[q + 1]]:
            begin, end = indptr[term], indptr[term + 1]
            found, scored = indices[begin:end], data[begin:end]
            for at in range(len(found)):
                scores[np.uint32(found[at])] += scored[at]  # unsigned: no test for a negative one, in half the time
        least = best[q, last]
        for row in range(passages):
            score = scores[row]
            scores[row] = 0
            if score > least:  # an equal one does not displace an earlier row, so ties keep their order
                at = last
                while at > 0 and best[q, at - 1] < score:
                    best[q, at], rows[q, at] = best[q, at - 1], rows[q, at - 1]
                    at -= 1
                best[q, at], rows[q, at] = score, first + row
                least = best[q, last]


def _postings(tokens: Any, lengths: Any, terms: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    latest = np.full(terms, -1, np.int32)
    starts = np.zeros(terms + 1, np.int64)
    at = 0
    for row in range(len(lengths)):
        for token in tokens[at : at + lengths[row]]:
            if latest[token] != row:
                latest[token] = row
                starts[token + 1] += 1
        at += lengths[row]
    starts = np.cumsum(starts)
    rows, counts = np.empty(starts[-1], np.int32), np.zeros(starts[-1], np.int32)
    latest[:], at = -1, 0
    ends = starts[:-1].copy()
    for row in range(len(lengths)):
        for token in tokens[at : at + lengths[row]]:
            if latest[token] != row:
                latest[token] = row
                rows[ends[token]] = row
                ends[token] += 1
            counts[ends[token] - 1] += 1
        at += lengths[row]
    return starts, rows, counts


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    try:
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # numba finds no folder that it may write to
        return numba.njit(nogil=True)(function)


#: best(data, indices, indptr, passages, first, terms, starts, rows, best) keeps the best of what was found before and
#: of a shard's passages, in place.
#:
#: `data`, `indices` and `indptr` are bm25s's matrix of scores by term (CSC) of `passages` passages from row `first` on;
#: query q has the terms `terms[starts[q]:starts[q + 1]]`. `rows` and `best`, of shape (queries, k), hold each query's
#: rows and scores, best first, of equals the earlier row first; to begin with, -1 and 0. Only scores above 0 are kept.
#: The sums are in float32 in the query's order, as bm25s's are.
best = _compiled(_best)

#: postings(tokens, lengths, terms) -> (starts, rows, counts): the passages of each term and how often each has it.
#:
#: `tokens` holds the term of each token of all passages, one passage after another, `lengths` each passage's number
#: of tokens. Term t is in the passages `rows[starts[t]:starts[t + 1]]`, in rising order.
postings = _compiled(_postings)
