"""Questions from files as people have them."""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any, ClassVar

from whale_envs.data.files import Layout, Row, counts_rows
from whale_envs.data.reader import Dropped, TaskReader
from whale_envs.errors import UserError
from whale_envs.task import Task
from whale_envs.verifiers.exact_match import normalise

NO_QUESTION = "no question is left after normalisation"
NO_ANSWER = "no answer is left after normalisation"

#: Where an object holds its answers: Search-R1's reward_model, SQuAD, TriviaQA.
_INSIDE = ("target", "ground_truth", "text", "value", "aliases")
_ASKS = re.compile(
    r"(who|whose|whom|what|when|where|which|why|how|is|are|was|were|do|does|did|can|in|on|at|name)\b|.*\?\s*$",
    re.IGNORECASE | re.DOTALL,
)


def name_columns(rows: Sequence[Sequence[str]]) -> list[str] | None:
    """The question is the one column that asks, the answer the one other column that does not count its rows."""
    columns = list(zip(*(row for row in rows if len(row) == len(rows[0])), strict=True))
    asks = [sum(1 for cell in column if _ASKS.match(cell.strip())) / len(column) for column in columns]
    questions = [i for i, share in enumerate(asks) if share >= 0.6]
    answers = [i for i, column in enumerate(columns) if i not in questions and not counts_rows(column)]
    if len(questions) != 1 or len(answers) != 1:
        return None
    names = [""] * len(columns)
    names[questions[0]], names[answers[0]] = "question", "answer"
    return names


class QuestionReader(TaskReader):
    """Questions with one or more accepted answers. A task's content is its question after SQuAD normalisation."""

    domain = "search-qa"
    layout = Layout(
        expected="questions with answers",
        columns=(
            ("question", "query"),
            ("golden_answers", "answers", "answer", "possible_answers", "target", "reward_model"),
        ),
        extras=("dataset", "data_source", "answer_aliases"),
        name_columns=name_columns,
    )
    gold: ClassVar[Any] = list[str]

    def task(self, row: Row) -> tuple[str, Task]:
        """See `TaskReader.task`."""
        (name, question), (column, answers) = self.cell(row, 0), self.cell(row, 1)
        if question is None:
            raise Dropped(NO_QUESTION)
        if not isinstance(question, str):
            raise UserError(f"{row.where}: the {name} is a {type(question).__name__}: expected a string")
        if isinstance(answers, bytes):
            raise UserError(f"{row.where}: the {column} is a bytes: expected text")
        content = normalise(question)
        if not content:
            raise Dropped(NO_QUESTION)
        golds = [g for g in (*_answers(answers), *_answers(row.cells.get("answer_aliases"))) if normalise(g)]
        if not golds:
            raise Dropped(NO_ANSWER)
        source = str(row.cells.get("dataset") or row.cells.get("data_source") or "")
        return content, Task(_task_id(content), {"question": question.strip()}, list(dict.fromkeys(golds)), source)

    def merge(self, tasks: Sequence[Task]) -> Task | None:
        """All accepted answers together, if there is one that all rows accept."""
        accepted = [{normalise(g) for g in task.gold} for task in tasks]
        if not set.intersection(*accepted):
            return None
        place: dict[str, int] = {}  # sorted by it, so that the rows' order does not count
        for task in tasks:
            for i, gold in enumerate(task.gold):
                place[gold] = min(i, place.get(gold, i))
        first = tasks[0]
        return Task(first.id, first.shown, sorted(place, key=lambda gold: (place[gold], gold)), first.source)


def _answers(value: Any) -> list[str]:
    """The answers in a cell: a string, a list, a list written as a string, or an object that holds one of them."""
    if isinstance(value, dict):
        return [answer for name in _INSIDE for answer in _answers(value.get(name))]
    if isinstance(value, list | tuple):
        return [answer for part in value for answer in _answers(part)]
    if isinstance(value, str) and value.startswith("[") and value.endswith("]"):
        for parse in (json.loads, ast.literal_eval):  # as JSON (PopQA) and as pandas writes a list to CSV
            try:
                return _answers(list(parse(value)))
            except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
                continue
    if isinstance(value, float) and value.is_integer():  # a year in a column that has gaps: 1984.0
        value = int(value)
    return [] if value is None or isinstance(value, bool) else [str(value).strip()]


def _task_id(content: str) -> str:
    return "qa-" + hashlib.sha256(content.encode()).hexdigest()[:12]
