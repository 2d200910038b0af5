r"""Math problems from files as people have them: columns found by name, golds checked, nothing lost silently.

Known shapes: `problem`/`question` with `answer` (AIME, AMC, MATH-500), GSM8K ("... #### 42"), MATH (`solution` with
`\boxed{}`), DAPO-Math-17K (`prompt` as a list of messages in a wrapper, `reward_model.ground_truth`).
"""

from __future__ import annotations

import functools
import hashlib
import re
import unicodedata
from collections.abc import Sequence
from statistics import median
from typing import Any, ClassVar

from whale_envs.data.files import Layout, Row, counts_rows
from whale_envs.data.reader import Dropped, TaskReader
from whale_envs.errors import UserError
from whale_envs.task import Task
from whale_envs.verifiers.math_answer import integer, stated

#: Column names, the first that a row has wins.
PROBLEM_COLUMNS = ("problem", "question", "prompt", "query", "input")
GOLD_COLUMNS = (
    "answer", "final_answer", "expected_answer", "ground_truth", "gold", "target", "reward_model", "solution",
)  # fmt: skip

NOT_INTEGER = "the answer is not an integer"
NO_ANSWER = "no answer"
NO_PROBLEM = "no problem text"

#: The prompt that the published DAPO-Math-17K wraps around each problem.
_WRAPPER = re.compile(
    r"\A\s*Solve the following math problem step by step\. The last line of your response should be of the form "
    r"Answer: .{0,60}?where \$Answer is the answer to the problem\.\s*(?P<problem>.*?)\s*"
    r"Remember to put your answer on its own line after \"Answer:\"\.\s*\Z",
    re.DOTALL,
)


def name_columns(rows: Sequence[Sequence[str]]) -> list[str] | None:
    """The answer is the one column of integers that does not count its rows, the problem the longest other one."""
    columns = list(zip(*(row for row in rows if len(row) == len(rows[0])), strict=True))
    whole = [sum(1 for cell in column if integer(cell)) / len(column) >= 0.8 for column in columns]
    answers = [i for i, column in enumerate(columns) if whole[i] and not (len(column) > 1 and counts_rows(column))]
    texts = [i for i in range(len(columns)) if not whole[i]]
    if len(answers) != 1 or not texts:
        return None
    names = [""] * len(columns)
    names[answers[0]] = "answer"
    names[max(texts, key=lambda i: median(map(len, columns[i])))] = "problem"
    return names


class ProblemReader(TaskReader):
    """Problems with an integer answer. A task's content is its problem without typography (`content_key`)."""

    domain = "math"
    verifiers: ClassVar[tuple[str, ...]] = ("integer",)
    layout = Layout("math problems with answers", (PROBLEM_COLUMNS, GOLD_COLUMNS), ("data_source",), name_columns)
    gold = str

    def task(self, row: Row) -> tuple[str, Task]:
        """See `TaskReader.task`."""
        (name, value), (column, gold) = self.cell(row, 0), self.cell(row, 1)
        problem, answer = _problem_text(value, name, row.where), _gold_text(gold, column, row.where)
        if not problem:
            raise Dropped(NO_PROBLEM)
        if not answer:
            raise Dropped(NO_ANSWER)
        key, written = content_key(problem), self.written(answer)
        return key, Task(task_id(key), {"question": problem}, written, str(row.cells.get("data_source") or ""))

    def written(self, answer: str) -> str:
        """The gold for an answer, in one notation. Raises `Dropped` for one that the verifier cannot use."""
        if (number := integer(answer)) is None:
            raise Dropped(NOT_INTEGER)
        return number

    def merge(self, tasks: Sequence[Task]) -> Task | None:
        """The first, if all have the same answer."""
        return tasks[0] if all(t.gold == tasks[0].gold for t in tasks) else None


class ExpressionReader(ProblemReader):
    """Problems with any answer, for the verifier "math-verify"."""

    verifiers = ("math-verify", "integer")

    def written(self, answer: str) -> str:
        """See `ProblemReader.written`."""
        return integer(answer) or answer


def task_id(key: str) -> str:
    """A task's id, from its content alone."""
    return "math-" + hashlib.sha256(key.encode()).hexdigest()[:12]


@functools.lru_cache(maxsize=1 << 15)  # DAPO-Math-17K has every problem a hundred times
def content_key(problem: str) -> str:
    r"""A problem's content without its typography: two problems with one key are the same problem.

    White space, letter case, dollar signs, `\(`, `\[`, braces, quotes and sentence punctuation go; digits, letters,
    operators and punctuation between digits stay, since `x+y` and `x-y` differ, as 1.5 and 15 do.
    """
    text = unicodedata.normalize("NFKC", problem).casefold().replace("。", ".")
    text = re.sub(r"\\[()\[\]!,;: ]|[\s${}\"'“”‘’`]", "", text)
    return re.sub(r"(?<![0-9])[.,;:?]|[.,;:?](?![0-9])", "", text)


def _problem_text(value: Any, column: str, where: str) -> str:
    if isinstance(value, list) and value and isinstance(value[-1], dict):  # chat messages: the problem is in the last
        value = value[-1].get("content")
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UserError(f"{where}: the {column} is a {type(value).__name__}: expected a string or chat messages")
    wrapped = _WRAPPER.match(value)
    return (wrapped["problem"] if wrapped else value).strip()


def _gold_text(value: Any, column: str, where: str) -> str:
    if isinstance(value, dict):
        value = value.get("ground_truth")
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if value is None or isinstance(value, bool):
        return ""
    if isinstance(value, int | float):  # from parquet; in JSON and CSV numbers are read as text
        return str(value)
    if not isinstance(value, str):
        raise UserError(f"{where}: the {column} is a {type(value).__name__}: expected a string or a number")
    return stated(value)
