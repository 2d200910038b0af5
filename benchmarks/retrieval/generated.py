"""A corpus like the 2018 Wikipedia's in its figures: about 100 words a passage, word frequencies by Zipf's law.

Words are numbered by rank and written in letters, so nothing is copied from anywhere; a seed decides all.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

#: Zipf-Mandelbrot's exponent and shift for English, and the size of the vocabulary that words are drawn from.
EXPONENT, SHIFT, VOCABULARY = 1.07, 2.7, 2_000_000
_CHUNK = 10_000


def write(path: Path, passages: int, queries: int, seed: int = 0) -> list[str]:
    """Write the corpus as JSONL; returns queries, each of 5 to 15 words that stand in one passage."""
    draw = np.random.default_rng(seed)
    chances = np.cumsum(1 / (np.arange(VOCABULARY) + 1 + SHIFT) ** EXPONENT)
    chances /= chances[-1]
    words = np.array([word(rank) for rank in range(VOCABULARY)], dtype=object)
    asked: list[str] = []
    every = max(1, passages // queries)
    with path.open("w") as file:
        for first in range(0, passages, _CHUNK):
            lengths = draw.normal(100, 20, min(_CHUNK, passages - first)).clip(20, 200).astype(int)
            ends = np.cumsum(lengths)
            drawn = words[np.searchsorted(chances, draw.random(ends[-1]))]
            for row, (start, end) in enumerate(zip(ends - lengths, ends, strict=True), first):
                text = drawn[start:end]
                title = " ".join(text[:2])
                file.write(json.dumps({"id": str(row), "title": title, "text": " ".join(text)}) + "\n")
                if row % every == 0 and len(asked) < queries:
                    asked.append(" ".join(draw.choice(text, draw.integers(5, 16), replace=False)))
    return asked


def word(rank: int) -> str:
    """A word for each rank: frequent ones are short."""
    letters = ""
    rank += 1
    while rank:
        rank, letter = divmod(rank - 1, 26)
        letters = chr(ord("a") + letter) + letters
    return letters
