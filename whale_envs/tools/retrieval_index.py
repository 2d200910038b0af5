"""Index folders, read memory-mapped.

    plan.json          what the index is of
    index.json         what it holds; written last, so its presence says that the index is finished
    vocab.index.json   each term's number, in all shards
    shard-00000/       a run of passages, in the corpus's order
        passages.jsonl   {id, title, text} a line
        offsets.npy      where each line starts, and where the last one ends
        bm25s/           their scores, as `bm25s.BM25.save` writes them and `bm25s.BM25.load` reads them

`whale_envs.tools.retrieval_build` writes them.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import bm25s
import msgspec
import numpy as np
from numpy.typing import NDArray

from whale_envs.data.corpus import EXPECTED
from whale_envs.data.kept import cache_folder
from whale_envs.episode import read_json
from whale_envs.errors import UserError
from whale_envs.harness.helpers import Passage
from whale_envs.harness.wire import clean

#: BM25's two constants, as bm25s has them by default.
K1, B = 1.5, 0.75
#: Changes with the files' form and with the tokens.
FORMAT = 1


class Passages(Protocol):
    """Passages by their row in the corpus."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: int, /) -> Passage: ...

    def __iter__(self) -> Iterator[Passage]: ...

    def scored(self, row: int, score: float) -> Passage:
        """The passage of a row as a search found it, which is the caller's own."""


class HeldPassages(list[Passage]):
    """Passages in memory. See `Passages`."""

    def scored(self, row: int, score: float) -> Passage:
        """See `Passages.scored`."""
        passage = self[row]
        return Passage(passage.id, passage.title, passage.text, score)


class Plan(msgspec.Struct, frozen=True):
    """What an index is of; another plan gives another index."""

    corpus: str
    bytes: int
    modified_ns: int
    shard_passages: int
    format: int = FORMAT

    @classmethod
    def of(cls, corpus: Path, shard_passages: int) -> Plan:
        """The plan for a corpus file as it is now. Raises `UserError` when it cannot be read."""
        try:
            with corpus.open("rb") as file:
                found = os.fstat(file.fileno())
        except OSError as error:
            raise UserError(f"cannot read {corpus}: {error.strerror}; expected {EXPECTED}") from None
        return cls(clean(str(corpus.resolve())), found.st_size, found.st_mtime_ns, shard_passages)


class IndexInfo(msgspec.Struct, frozen=True):
    """What a finished index holds: how many passages, tokens and different terms, and the passages of each shard."""

    plan: Plan
    passages: int
    tokens: int
    terms: int
    shards: tuple[int, ...]


class Shard(NamedTuple):
    """The scores of a run of passages, `first` being the row of the first of them.

    Term t scores `data[indptr[t]:indptr[t + 1]]` (float32) in the passages `first + indices[...]` (int32).
    """

    data: NDArray[np.float32]
    indices: NDArray[np.int32]
    indptr: NDArray[np.int64]
    passages: int
    first: int

    @classmethod
    def of(cls, scores: dict[str, Any], first: int) -> Shard:
        """From `bm25s.BM25.scores`."""
        data, indices, indptr = (np.asarray(scores[name]).view() for name in ("data", "indices", "indptr"))
        for values in (data, indices, indptr):
            values.flags.writeable = False  # as mapped ones are, so that one compiled function fits both
        return cls(data, indices, indptr, int(scores["num_docs"]), first)


@contextlib.contextmanager
def undamaged(folder: Path) -> Iterator[None]:
    """Raise `UserError` where a file of an index, which is read within, is gone or was changed since it was written."""
    try:
        yield
    except (OSError, ValueError, EOFError, KeyError) as error:  # numpy's, mmap's, bm25s's
        raise UserError(
            f"the index in {folder} is damaged ({error}): remove the folder, and build the index again"
        ) from None


class StoredIndex:
    """A finished index folder. Raises `UserError` when it is none."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.info = folder, read_info(folder)
        with undamaged(folder):
            self.passages = StoredPassages([shard_folder(folder, n) for n in range(len(self.info.shards))])

    def vocabulary(self) -> dict[str, int]:
        """Each term's number."""
        with undamaged(self.folder):
            return read_json(self.folder / "vocab.index.json", dict[str, int])

    def shards(self) -> list[Shard]:
        """The scores, memory-mapped."""
        with undamaged(self.folder):
            loaded = [
                bm25s.BM25.load(shard_folder(self.folder, n) / "bm25s", mmap=True, load_vocab=False)
                for n in range(len(self.info.shards))
            ]
        return [Shard.of(index.scores, sum(self.info.shards[:n])) for n, index in enumerate(loaded)]


class StoredPassages:
    """The passages of shard folders, read from the files when they are asked for. See `Passages`."""

    def __init__(self, shards: list[Path]) -> None:
        # asarray: a plain view of a mapped file is read much faster than numpy's own kind of it
        self._offsets = [np.asarray(np.load(shard / "offsets.npy", mmap_mode="r")) for shard in shards]
        self._lines = [_mapped(shard / "passages.jsonl") for shard in shards]
        for shard, offsets, lines in zip(shards, self._offsets, self._lines, strict=True):
            if len(lines) != offsets[-1]:
                raise ValueError(f"{shard / 'passages.jsonl'} has {len(lines)} bytes, not {offsets[-1]}")
        self._firsts = np.cumsum([0, *(len(offsets) - 1 for offsets in self._offsets)]).tolist()
        self._decode = msgspec.json.Decoder(Passage).decode

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def __getitem__(self, row: int, /) -> Passage:
        if not 0 <= row < self._firsts[-1]:
            raise IndexError(f"row {row} of {len(self)} passages")
        shard = bisect_right(self._firsts, row) - 1
        at, offsets = row - self._firsts[shard], self._offsets[shard]
        return self._decode(self._lines[shard][offsets.item(at) : offsets.item(at + 1)])

    def __iter__(self) -> Iterator[Passage]:
        return (self[row] for row in range(len(self)))

    def scored(self, row: int, score: float) -> Passage:
        """See `Passages.scored`."""
        passage = self[row]
        passage.__dict__["score"] = score  # it was read just now, and is nobody else's
        return passage


def _mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def shard_folder(folder: Path, number: int) -> Path:
    """Where a shard is."""
    return folder / f"shard-{number:05d}"


def read_info(folder: Path) -> IndexInfo:
    """What a finished index holds. Raises `UserError` when it is not finished, or of another form."""
    try:
        info = msgspec.json.decode((folder / "index.json").read_bytes(), type=IndexInfo)
    except FileNotFoundError:
        if (folder / "plan.json").exists():
            raise UserError(f"the index in {folder} is not finished: run whale index build again, it goes on") from None
        raise UserError(f"{folder} is no index: expected a folder that whale index build has written") from None
    except (OSError, msgspec.DecodeError) as error:
        raise UserError(f"cannot read {folder / 'index.json'}: {error}; build the index again") from None
    if info.plan.format != FORMAT:
        raise UserError(
            f"the index in {folder} has form {info.plan.format}, this version reads {FORMAT}: build it again"
        )
    return info


def cached_index(corpus: Path) -> Path:
    """The folder of a corpus file's index in the user's cache (see `cache_folder`). Built if need be, which is told on
    stderr when it takes its time."""
    from whale_envs.tools.retrieval_build import SHARD_PASSAGES, build_index, printed

    plan = Plan.of(corpus, SHARD_PASSAGES)
    folder = cache_folder("indexes") / hashlib.sha256(msgspec.json.encode(plan)).hexdigest()[:16]
    build_index(corpus, folder, SHARD_PASSAGES, printed(f"indexing {corpus}, once: "))
    return folder
