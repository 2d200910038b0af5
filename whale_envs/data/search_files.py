"""Questions and corpora from JSONL files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from whale_envs.data.files import read_jsonl, split_by_content
from whale_envs.errors import UserError
from whale_envs.harness.helpers import Passage
from whale_envs.task import Splits, Task
from whale_envs.verifiers.exact_match import normalise

_ANSWERS = ("answers", "golden_answers", "answer", "target")


def read_corpus(path: str | Path) -> Iterator[Passage]:
    """Passages from JSONL(.gz) with `{id, title, text}` or `{id, contents}` (wiki-18: title in the first line).

    Raises `UserError` naming file and line for a row of another shape.
    """
    for number, row in read_jsonl(Path(path)):
        if isinstance(row.get("contents"), str):
            title, _, text = row["contents"].partition("\n")
            title = title.strip('" ')
        elif isinstance(row.get("text"), str):
            title, text = str(row.get("title") or ""), row["text"]
        else:
            raise UserError(f"{path}:{number} is no passage: expected text or contents, found {', '.join(sorted(row))}")
        yield Passage(str(row.get("id", number)), title, text)


def read_questions(path: str | Path) -> Splits:
    """Questions from JSONL, split by content; `dropped` counts the rows left out by reason.

    Raises `UserError` for a row without a question or without an answer column.
    """
    dropped: dict[str, int] = {}
    tasks: dict[str, Task] = {}

    def drop(reason: str) -> None:
        dropped[reason] = dropped.get(reason, 0) + 1

    for number, row in read_jsonl(Path(path)):
        question, golds = _question(row, f"{path}:{number}")
        content = normalise(question)
        if not content:
            drop("empty question")
        elif not (usable := [g for g in golds if normalise(g)]):
            drop("no answer is left after normalisation")
        elif content in tasks:
            drop("duplicate question")
        else:
            # named by its line: files that were put together from several hold an id twice
            name = f"{Path(path).stem}:{number}"
            tasks[content] = Task(name, {"question": question}, usable, str(row.get("dataset", "")))
    return split_by_content(tasks, dropped, str(path))


def _question(row: dict[str, Any], where: str) -> tuple[str, list[str]]:
    question = row.get("question")
    column = next((c for c in _ANSWERS if c in row), None)
    if not isinstance(question, str) or column is None:
        raise UserError(
            f"{where} is no question: expected question and one of {', '.join(_ANSWERS)}, "
            f"found {', '.join(sorted(row))}"
        )
    golds = row[column]
    if isinstance(golds, dict):  # Search-R1's reward_model column: {"target": [...]}
        golds = golds.get("target", [])
    return question, [str(g) for g in (golds if isinstance(golds, list) else [golds])]
