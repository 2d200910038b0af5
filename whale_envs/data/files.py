"""Rows of files as people have them: CSV (with commas, semicolons or tabs), JSONL, JSON and parquet, plain, gzipped or
compressed with zstandard.

How a file is packed is read from its first bytes, since names lie: the 2018 Wikipedia corpus `wiki-18.jsonl.gz` is a
tar archive within gzip. What it holds is told by its name. Everything but JSON and a column's text is streamed.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import itertools
import json
import math
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

import zstandard

from whale_envs.errors import UserError

#: The kinds of table that are read, by the name's ending before ".gz" or ".zst".
KINDS = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
#: How many rows of a CSV file without a header are looked at to find out what its columns hold.
LOOKS_AT = 50
#: Compressed bytes that are unpacked at a time.
_PACKED = 1 << 14


_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


@dataclass(frozen=True)
class Layout:
    """What a domain looks for in a file.

    Attributes:
        expected: what the file should hold, for messages.
        columns: the columns that a row needs, each with all names that it may have, in lower case.
        extras: other columns that are used where they are there.
        name_columns: gives the columns of a CSV file without a header their names, from its first rows; None when
            they cannot be told.
    """

    expected: str
    columns: tuple[tuple[str, ...], ...]
    extras: tuple[str, ...]
    name_columns: Callable[[Sequence[Sequence[str]]], Sequence[str] | None]

    def has(self, names: Sequence[str]) -> bool:
        """Whether every needed column is among `names`."""
        return all(any(name in names for name in column) for column in self.columns)

    def check(self, names: Sequence[str], where: str) -> None:
        """Raise `UserError` when a needed column is not among `names`."""
        for column in self.columns:
            if not any(name in names for name in column):
                has = ", ".join(names) or "none"
                raise UserError(f"{where} has no column {' or '.join(column)}: expected {self.expected}; it has {has}")


@dataclass(frozen=True)
class Row:
    """A row of a file.

    `where` says "FILE:LINE" (a parquet file's and a JSON list's rows are counted from 1). `cells` has the values by
    column name in lower case; numbers of CSV and JSON keep their digits as text, and NaN, which pandas writes where
    there is nothing, is None. `table`: the file has one set of columns, so that a missing cell is this row's own fault.
    """

    where: str
    cells: Mapping[str, Any]
    table: bool = False


def read_rows(path: Path, layout: Layout) -> Iterator[Row]:
    """The rows of a file in its order. Raises `UserError` for one that cannot be read or lacks a needed column."""
    kind = kind_of(path)
    with _reading(path, layout.expected):
        if kind in (".csv", ".tsv"):
            yield from _csv(path, layout)
        elif kind == ".jsonl":
            yield from _jsonl(path, layout.expected)
        elif kind == ".json":
            yield from _json(path, layout.expected)
        elif kind == ".parquet":
            yield from _parquet(path, layout)
        else:
            known = ", ".join(KINDS)
            raise UserError(f"{path} is of no known kind: expected {layout.expected}, as {known}, plain, .gz or .zst")


def read_jsonl(path: Path, expected: str, raw: io.BufferedReader | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, row) of each line of a JSONL file that is not blank; numbers keep their digits as text.

    `expected` is what the file should hold, for messages; `raw` as for `open_text`. Raises `UserError` for a file that
    cannot be read and for a line that is no JSON object.
    """
    with _reading(path, expected), open_text(path, raw) as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield number, _object(line, f"{path}:{number}")


def kind_of(path: Path) -> str:
    """The ending of a file's name without what says how it is packed: ".csv" of "puzzles.csv.zst"."""
    return Path(path.name.lower().removesuffix(".gz").removesuffix(".zst")).suffix


def counts_rows(column: Sequence[str]) -> bool:
    """Whether a column's cells are consecutive integers: it numbers the rows, and holds nothing else."""
    numbers = [int(cell) for cell in column if re.fullmatch(r"[0-9]{1,15}", cell.strip())]
    return len(numbers) == len(column) and all(b - a == 1 for a, b in itertools.pairwise(numbers))


@contextlib.contextmanager
def _reading(path: Path, expected: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"no file {path}: expected {expected}; check the path") from None
    except UnicodeDecodeError:
        raise UserError(f"cannot read {path}: it is no text in UTF-8; expected {expected}, saved as UTF-8") from None
    except (OSError, EOFError, csv.Error, zlib.error, zstandard.ZstdError, tarfile.TarError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"cannot read {path}: {why}; expected {expected}") from None


@contextlib.contextmanager
def open_text(path: Path, raw: io.BufferedReader | None = None) -> Iterator[TextIO]:
    """A file's text in UTF-8, unpacked from gzip, zstandard, and a tar archive of one file.

    `raw` is the file if it is open already, for whoever watches its position; it is closed at the end all the same.
    """
    with contextlib.ExitStack() as stack:
        unpacked = stack.enter_context(_unpacked(stack.enter_context(raw or path.open("rb"))))
        if unpacked.peek(512)[257:262] == b"ustar":
            archive = stack.enter_context(tarfile.open(fileobj=unpacked, mode="r|"))
            member = next((m for m in archive if m.isfile()), None)
            if member is None:
                raise UserError(f"{path} is a tar archive without a file in it")
            inner = cast(BinaryIO, io.BufferedReader(_Member(archive, member)))
        else:
            inner = cast(BinaryIO, unpacked)
        # newline="": the csv module wants line ends as they are, and JSON does not mind
        yield stack.enter_context(io.TextIOWrapper(inner, encoding="utf-8-sig", newline=""))


class _Member(io.RawIOBase):
    """A file in a tar archive that is read as a stream; tarfile's own object asks the stream whether it can seek."""

    def __init__(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        self._file = cast(BinaryIO, archive.extractfile(member))

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _unpacked(file: io.BufferedReader) -> io.BufferedReader:
    start = file.peek(4)[:4]
    if start[:2] == b"\x1f\x8b":
        return io.BufferedReader(cast(io.RawIOBase, gzip.open(file, "rb")))
    if start == b"\x28\xb5\x2f\xfd":
        return io.BufferedReader(_Frames(file))
    return file


class _Frames(io.RawIOBase):
    """What the zstandard frames of a file hold. The library's own reader takes a frame that was cut off for whole."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._file = file
        self._frame: Any = None  # the one that is being read
        self._packed = b""
        self._data = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._data:
            packed = self._packed or self._file.read(_PACKED)
            if not packed:
                if self._frame is not None:
                    raise EOFError("it was cut off, within a frame of zstandard")
                return 0
            frame = self._frame or zstandard.ZstdDecompressor().decompressobj()
            self._data = memoryview(frame.decompress(packed))
            self._frame, self._packed = (None, frame.unused_data) if frame.eof else (frame, b"")
        length = min(len(buffer), len(self._data))
        buffer[:length], self._data = self._data[:length], self._data[length:]
        return length


def _csv(path: Path, layout: Layout) -> Iterator[Row]:
    with open_text(path) as file:
        rows = _table(file, layout, path)
        first = list(itertools.islice(rows, LOOKS_AT))
        filled = [cells for _, cells in first if cells]
        if not filled:
            raise UserError(f"{path} is empty: expected {layout.expected}")
        names, header = _names(filled, layout, path)
        if header:
            first.remove(next(row for row in first if row[1]))
        for where, cells in itertools.chain(first, rows):
            yield Row(where, _by_name(zip(names, cells, strict=False)), table=True)


def _table(file: TextIO, layout: Layout, path: Path) -> Iterator[tuple[str, list[str]]]:
    """Each row's place, "FILE:LINE" with its last line, and its cells.

    Raises `UserError` for quotes that do not match: a quoted cell that never ends would swallow every row after it.
    """
    csv.field_size_limit(1 << 26)  # a long solution is longer than the module's 128 KiB
    start = list(itertools.islice(file, LOOKS_AT))
    head = next((line for line in start if line.strip()), "")
    reader = csv.reader(itertools.chain(start, file), delimiter=_separator(head, layout, path), strict=True)
    line = 1
    try:
        for cells in reader:
            yield f"{path}:{reader.line_num}", cells
            line = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"cannot read the row of {path}:{line} ({error}): are all quotes in it closed?") from None


def _separator(head: str, layout: Layout, path: Path) -> str:
    """What stands between cells: where the first line names columns, what these come out by. Spreadsheets write
    semicolons where a comma is part of numbers."""
    usual = "\t" if kind_of(path) == ".tsv" else ","
    for separator in (usual, ",", ";", "\t"):
        names = [name.strip(' "\r\n').lower() for name in head.split(separator)]
        if layout.has(names):
            return separator
    return usual


def _names(rows: Sequence[Sequence[str]], layout: Layout, path: Path) -> tuple[Sequence[str], bool]:
    """The columns' names, and whether the first row gives them."""
    names = [cell.strip().lower() for cell in rows[0]]
    if any(name in names for column in layout.columns for name in column):
        layout.check(names, str(path))
        return names, True
    if (found := layout.name_columns(rows)) is None:
        line, wanted = ",".join(rows[0]), ", ".join(column[0] for column in layout.columns)
        raise UserError(
            f"{path} has no header, and what its columns hold cannot be told ({line!r:.60}): "
            f"expected {layout.expected}; give it a first line with the names {wanted}"
        )
    return found, False


def _jsonl(path: Path, expected: str) -> Iterator[Row]:
    for number, row in read_jsonl(path, expected):
        yield Row(f"{path}:{number}", _by_name(row.items()))


def _json(path: Path, expected: str) -> Iterator[Row]:
    """A list of objects, an object that holds one such list, or JSONL under the wrong name."""
    with open_text(path) as file:
        text = file.read()
    try:
        whole = _loads(text)
    except ValueError:
        yield from _jsonl(path, expected)
        return
    if isinstance(whole, dict):
        lists = [v for v in whole.values() if isinstance(v, list) and v and isinstance(v[0], dict)]
        whole = lists[0] if len(lists) == 1 else [whole]
    if not isinstance(whole, list):
        raise UserError(f"{path} holds a JSON {type(whole).__name__}: expected a list of objects")
    for number, row in enumerate(whole, 1):
        if not isinstance(row, dict):
            raise UserError(f"{path}:{number} is a JSON {type(row).__name__}: expected an object")
        yield Row(f"{path}:{number}", _by_name(row.items()))


def _parquet(path: Path, layout: Layout) -> Iterator[Row]:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            has = file.schema_arrow.names
            layout.check([name.lower() for name in has], str(path))
            wanted = {name for column in (*layout.columns, layout.extras) for name in column}
            number = 0
            for batch in file.iter_batches(4096, columns=[name for name in has if name.lower() in wanted]):
                for row in batch.to_pylist():
                    number += 1
                    yield Row(f"{path}:{number}", _by_name(row.items()))
    except (pyarrow.ArrowException, OverflowError) as error:  # the latter for a date that Python does not have
        why = str(error).splitlines()[0]
        raise UserError(f"cannot read {path}: {why}; expected {layout.expected}") from None


def _by_name(cells: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in cells:
        if isinstance(value, float) and math.isnan(value):  # of parquet
            value = None
        found.setdefault(str(name).lower(), value)  # of two columns with one name the first counts
    return found


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        row = _loads(line)
    except ValueError as error:
        raise UserError(f"{where} is no JSON ({error}): expected one object a line") from None
    if not isinstance(row, dict):
        raise UserError(f"{where} is a JSON {type(row).__name__}: expected one object a line")
    return row


def _constant(name: str) -> str | None:
    return None if name == "NaN" else name


def _loads(text: str) -> Any:
    try:
        # numbers as text, since int() refuses more than 4,300 digits and a float loses some; 1984.0 is 1984
        value = json.loads(
            text, parse_int=str, parse_float=lambda said: said.removesuffix(".0"), parse_constant=_constant
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if _SURROGATE.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("it holds half of a surrogate pair") from None
    return value
