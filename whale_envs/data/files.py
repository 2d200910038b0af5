"""Reading JSONL files, and splitting rows by content."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from whale_envs.errors import UserError
from whale_envs.task import Splits, Task, TaskSet


def read_jsonl(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, row) of each line that is not blank; plain or gzipped by the name's ending.

    Raises `UserError` for a file that cannot be read and, by line, for one that is no JSON object.
    """
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise UserError(f"{path}:{number} is not JSON ({error}): expected one JSON object a line") from None
                if not isinstance(row, dict):
                    raise UserError(f"{path}:{number} holds a {type(row).__name__}: expected one JSON object a line")
                yield number, row
    except (OSError, EOFError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot read {path}: {reason}; expected a JSONL file, plain or .gz") from None


def split_by_content(tasks: Mapping[str, Task], dropped: dict[str, int], name: str) -> Splits:
    """Deal tasks, keyed by their normalised content, into D_weight, D_harness and test.

    The order is that of the contents' hashes, whatever the file's: a quarter each to test and harness, the rest
    to weight, none empty. Raises `UserError` for fewer than 3 tasks.
    """
    order = sorted(tasks, key=lambda content: hashlib.sha256(content.encode()).digest())
    if len(order) < 3:
        raise UserError(
            f"{name} keeps {len(order)} rows: expected 3 or more, one a split; dropped: {dropped or 'none'}"
        )
    quarter = max(1, len(order) // 4)

    def part(split: str, contents: list[str]) -> TaskSet:
        return TaskSet([tasks[c] for c in contents], f"{name}, {split}")

    return Splits(
        weight=part("weight", order[2 * quarter :]),
        harness=part("harness", order[quarter : 2 * quarter]),
        test=part("test", order[:quarter]),
        dropped=dropped,
    )
