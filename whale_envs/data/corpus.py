"""Corpora as JSONL, plain or packed, one passage a line, read as a stream."""

from __future__ import annotations

from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

from whale_envs.data.files import kind_of, read_jsonl
from whale_envs.errors import UserError
from whale_envs.harness.helpers import Passage

#: What a corpus file holds, for messages.
EXPECTED = "passages, one JSON object with text or contents a line"


def read_corpus(path: str | Path, raw: BufferedReader | None = None) -> Iterator[Passage]:
    """Passages from JSONL with `{id, title, text}` or `{id, contents}` (wiki-18: title in the first line).

    One passage is held at a time. A row without an id is named by its line. `raw` is the file if it is open already,
    for whoever watches its position. Raises `UserError` naming file and line for a row of another shape, and for a
    table.
    """
    if (kind := kind_of(Path(path))) in (".csv", ".tsv", ".parquet"):
        raise UserError(
            f"{path} is a table: expected JSONL of {EXPECTED}, as pandas writes it: "
            f"pandas.read_{kind[1:].replace('tsv', 'table')}({str(path)!r}).to_json('corpus.jsonl', orient='records', "
            "lines=True)"
        )
    for number, row in read_jsonl(Path(path), EXPECTED, raw):
        identity = str(number if row.get("id") is None else row["id"])
        if isinstance(row.get("contents"), str):
            yield from_contents(identity, row["contents"])
        elif isinstance(row.get("text"), str):
            yield Passage(identity, _one_line(str(row.get("title") or "")), row["text"])
        else:
            raise UserError(f"{path}:{number} is no passage: expected text or contents, found {', '.join(sorted(row))}")


def contents(passage: Passage) -> str:
    """A passage as wiki-18 and the servers of Search-R1 write it: its title in quotes, a newline, its text."""
    return f'"{passage.title}"\n{passage.text}'


def from_contents(identity: str, written: str, score: float = 0.0) -> Passage:
    """The passage that `contents` wrote. Where the title's line has no quotes, it is taken as it is."""
    title, _, text = written.partition("\n")
    title = title.strip()
    if len(title) > 1 and title[0] == title[-1] == '"':
        title = title[1:-1]
    return Passage(identity, title, text, score)


def _one_line(title: str) -> str:
    """A title without line breaks, so that `contents` can be read back."""
    return " ".join(title.splitlines()).strip()
