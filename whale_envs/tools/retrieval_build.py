"""Building index folders (see `whale_envs.tools.retrieval_index`) from a corpus that is read as a stream, once.

A shard is a run of passages that fits in memory: its passages are stored and its tokens counted as it is read. When
all are, the terms of all shards are merged and every shard's scores computed from the whole corpus's counts, so that
they are those of one index over everything. Each step is a folder that appears whole; after a kill, the same call
does what is missing and ends with the same files.
"""

from __future__ import annotations

import fcntl
import itertools
import math
import os
import shutil
import sys
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import bm25s
import msgspec
import numpy as np
from numpy.typing import NDArray

from whale_envs.data.corpus import read_corpus
from whale_envs.episode import read_json, write_atomic
from whale_envs.errors import UserError
from whale_envs.harness.helpers import Passage
from whale_envs.tools.retrieval_index import K1, B, IndexInfo, Plan, StoredIndex, read_info, shard_folder, undamaged
from whale_envs.tools.retrieval_kernel import postings
from whale_envs.tools.retrieval_tokens import passage_tokens

#: Passages in a shard, unless one asks otherwise: about 0.5 GB while it is counted, at 100 words a passage.
SHARD_PASSAGES = 250_000

#: Seconds between two lines of `printed`, and passages between two steps that a `watch` is told.
LINE_EVERY, STEP_EVERY = 5.0, 1000
#: How many scores are computed at a time.
_SLICE = 1 << 20


class Step(NamedTuple):
    """How far a build has come: a stage ("reading", "scoring"), of how much how much is done, passages read so far.

    Reading is counted in bytes of the file, scoring in passages.
    """

    stage: str
    done: int
    total: int
    passages: int


def printed(what: str = "", every: float = LINE_EVERY) -> Callable[[Step], None]:
    """A `watch` that prints a line to stderr every so many seconds, with `what` before it.

    A stage's beginning and end are no news: a corpus of a few passages, for which numba first compiles, is not told of.
    """
    last = time.monotonic()

    def watch(step: Step) -> None:
        nonlocal last
        if (now := time.monotonic()) - last >= every and 0 < step.done < step.total:
            last = now
            share = step.done / step.total
            print(f"{what}{step.stage} {share:.0%}, {step.passages:,} passages", file=sys.stderr, flush=True)

    return watch


class _Counts(NamedTuple):
    """A shard's terms in rising order, and the counts of `whale_envs.tools.retrieval_kernel.postings`."""

    terms: list[str]
    starts: NDArray[np.int64]
    rows: NDArray[np.int32]
    counts: NDArray[np.int32]
    lengths: NDArray[np.int32]


def build_index(
    corpus: Path,
    out: Path,
    shard_passages: int = SHARD_PASSAGES,
    watch: Callable[[Step], None] = lambda step: None,
    step_every: int = STEP_EVERY,
) -> IndexInfo:
    """Build the index of a corpus file in the folder `out`, or go on with it; says what it holds.

    `watch` is told a step for every `step_every` passages that are read, and for each shard that is scored. Memory is
    bounded by a shard's counts and the corpus's different terms. Another process that builds the same waits for this
    one. Raises `UserError` for a corpus that cannot be read or holds no passage, and for a folder that has other files
    or the index of another corpus, or a damaged one.
    """
    plan = Plan.of(corpus, shard_passages)
    with _claimed(out, plan):
        if not (out / "index.json").exists():
            shards = _read(corpus, out, plan, watch, step_every)
            info = _score(out, plan, shards, watch)
            write_atomic(out / "index.json", msgspec.json.format(msgspec.json.encode(info)))
        else:
            StoredIndex(out).shards()  # what was finished may have been damaged since
        info = read_info(out)
        for number in range(len(info.shards)):
            shutil.rmtree(_counts(out, number), ignore_errors=True)
        return info


@contextmanager
def _claimed(out: Path, plan: Plan) -> Iterator[None]:
    """The folder for this process alone, with its plan written."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = (out / ".lock").open("w")
    except OSError as error:
        raise UserError(
            f"cannot write to {out}: {error.strerror}; give another --out, or for the index of a plain corpus "
            "file set WHALE_CACHE to a folder that can be written"
        ) from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        written, other = out / "plan.json", None
        if written.exists():
            try:
                other = msgspec.json.decode(written.read_bytes(), type=Plan)
            except msgspec.DecodeError:
                raise UserError(f"{out} holds other files (plan.json): give another --out") from None
            if other != plan and any(out.glob("shard-*")):
                raise UserError(
                    f"{out} holds the index of {other.corpus} as it was, or with other options: remove the folder, "
                    "or give another --out"
                )
        elif strays := sorted(p.name for p in out.iterdir() if not p.name.startswith(".")):
            raise UserError(f"{out} holds other files ({strays[0]}): give another --out")
        if other != plan:  # also in place of that of a build that came to nothing
            write_atomic(written, msgspec.json.encode(plan))
        try:
            yield
        except OSError as error:  # numpy gives its own no number
            raise UserError(
                f"cannot write the index in {out}: {error.strerror or error}; free some space or give another --out, "
                "then run the same command again"
            ) from None


def _read(corpus: Path, out: Path, plan: Plan, watch: Callable[[Step], None], step_every: int) -> int:
    """Read the corpus into shards, from the first passage that is in none; returns how many there are."""
    number, done = 0, 0
    while shard_folder(out, number).exists():
        with undamaged(out):
            done += len(np.load(shard_folder(out, number) / "offsets.npy", mmap_mode="r")) - 1
        number += 1
    with corpus.open("rb") as raw:
        told = lambda n: watch(Step("reading", raw.tell(), plan.bytes, n))  # noqa: E731
        passages = _watched(read_corpus(corpus, raw), told, step_every)
        for _ in itertools.islice(passages, done):
            pass
        while first := next(passages, None):
            run = itertools.chain([first], itertools.islice(passages, plan.shard_passages - 1))
            with _appearing(shard_folder(out, number)) as draft:
                _count(run, draft)
            number += 1
    if not number:
        raise UserError(f"{corpus} holds no passage: expected at least one row with text or contents")
    return number


def _watched(passages: Iterable[Passage], tell: Callable[[int], None], every: int) -> Iterator[Passage]:
    for number, passage in enumerate(passages, 1):
        if number % every == 0:
            tell(number)
        yield passage


def _count(passages: Iterator[Passage], folder: Path) -> None:
    """Store a shard's passages and the counts of their tokens."""
    numbers: defaultdict[str, int] = defaultdict()
    numbers.default_factory = numbers.__len__  # a new term gets the next number
    tokens, lengths, offsets = array("i"), array("i"), array("q", [0])
    encoder = msgspec.json.Encoder()
    with (folder / "passages.jsonl").open("wb") as file:
        for passage in passages:
            words = passage_tokens(passage)
            tokens.extend([numbers[word] for word in words])
            lengths.append(len(words))
            file.write(encoder.encode({"id": passage.id, "title": passage.title, "text": passage.text}) + b"\n")
            offsets.append(file.tell())
    terms = sorted(numbers)
    rank = np.empty(len(terms), np.int32)
    rank[[numbers[term] for term in terms]] = np.arange(len(terms), dtype=np.int32)
    sizes = np.array(lengths, np.int32)
    starts, rows, counts = postings(rank[np.frombuffer(tokens, np.int32)], sizes, len(terms))
    np.save(folder / "offsets.npy", np.array(offsets, np.int64))
    (folder / "counts").mkdir()
    for name, values in zip(_Counts._fields[1:], (starts, rows, counts, sizes), strict=True):
        np.save(folder / "counts" / f"{name}.npy", values)
    (folder / "counts" / "terms.json").write_bytes(encoder.encode(terms))


def _load_counts(out: Path, number: int) -> _Counts:
    folder = _counts(out, number)
    with undamaged(out):
        terms = read_json(folder / "terms.json", list[str])
        return _Counts(terms, *(np.load(folder / f"{name}.npy", mmap_mode="r") for name in _Counts._fields[1:]))


def _score(out: Path, plan: Plan, shards: int, watch: Callable[[Step], None]) -> IndexInfo:
    """Merge the shards' terms, and compute every shard's scores."""
    found: defaultdict[str, int] = defaultdict(int)  # term: passages that have it
    sizes, tokens = [], 0
    for number in range(shards):
        part = _load_counts(out, number)
        for term, passages in zip(part.terms, np.diff(part.starts).tolist(), strict=True):
            found[term] += passages
        sizes.append(len(part.lengths))
        tokens += int(part.lengths.sum())
    total = sum(sizes)
    vocabulary = {term: i for i, term in enumerate(sorted(found))}
    if not (out / "vocab.index.json").exists():
        write_atomic(out / "vocab.index.json", msgspec.json.encode(vocabulary))
    idf = _idf(np.array([found[term] for term in vocabulary], np.int64), total)
    for number in range(shards):
        watch(Step("scoring", sum(sizes[:number]), total, total))
        target = shard_folder(out, number) / "bm25s"
        if not target.exists():
            with _appearing(target) as draft:
                _save_scores(_load_counts(out, number), vocabulary, idf, tokens / total, draft)
    watch(Step("scoring", total, total, total))
    return IndexInfo(plan, total, tokens, len(vocabulary), tuple(sizes))


def _idf(found: NDArray[np.int64], passages: int) -> NDArray[np.float32]:
    """Lucene's inverse document frequency of terms that are in so many passages each."""
    values, which = np.unique(found, return_inverse=True)
    each = [math.log(1 + (passages - n + 0.5) / (n + 0.5)) for n in values.tolist()]
    return np.array(each, np.float32)[which]


def _save_scores(
    shard: _Counts, vocabulary: dict[str, int], idf: NDArray[np.float32], average: float, folder: Path
) -> None:
    """Save a shard's scores as bm25s does: to the last bit those of its own index over the whole corpus.

    Both lists of terms rise, so a shard's counts are in the vocabulary's order already.
    """
    numbers = np.array([vocabulary[term] for term in shard.terms], np.int64)
    each = np.diff(shard.starts)
    indptr = np.zeros(len(vocabulary) + 1, np.int64)
    indptr[1 + numbers] = each
    np.cumsum(indptr, out=indptr)
    weights = np.repeat(idf[numbers], each)
    norms = K1 * ((1 - B) + B * shard.lengths / average)
    data = np.empty(len(shard.rows), np.float32)
    for at in range(0, len(data), _SLICE):
        part = slice(at, at + _SLICE)
        counts = shard.counts[part].astype(np.float32)
        data[part] = weights[part] * (counts / (norms[shard.rows[part]] + counts))
    index = bm25s.BM25(k1=K1, b=B, method="lucene")
    index.scores = {"data": data, "indices": shard.rows, "indptr": indptr, "num_docs": len(shard.lengths)}
    index.vocab_dict, index.nonoccurrence_array = {}, None
    index.save(folder, show_progress=False)


def _counts(out: Path, number: int) -> Path:
    return shard_folder(out, number) / "counts"


@contextmanager
def _appearing(folder: Path) -> Iterator[Path]:
    """A folder to write to, which gets its name when all of it is on the disk."""
    draft = folder.with_name(f".{folder.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    yield draft
    for path in draft.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    os.replace(draft, folder)
