r"""Math problems from a JSONL file, as people have them: columns found by name, golds checked, nothing lost silently.

Known shapes: `problem`/`question` with `answer` (AIME, AMC, MATH-500), GSM8K ("... #### 42"), MATH (`solution` with
`\boxed{}`), DAPO-Math-17K (`prompt` as a list of messages in a wrapper, `reward_model.ground_truth`). Every row is
either a task or counted in `dropped` under its reason; `len(tasks) + sum(dropped.values())` is the number of rows.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any

from whale_envs.errors import UserError
from whale_envs.harness.helpers import boxed
from whale_envs.task import Splits, Task, TaskSet
from whale_envs.verifiers.math_answer import integer

#: Column names, the first that a row has wins; matched without regard to case.
PROBLEM_COLUMNS = ("problem", "question", "prompt", "query", "input")
GOLD_COLUMNS = (
    "answer", "final_answer", "expected_answer", "ground_truth", "gold", "target", "reward_model", "solution",
)  # fmt: skip

#: D_harness and D_test hold this many tasks each, as in the paper, or a quarter of a small file.
HELD_OUT = 256

NOT_INTEGER = "the answer is not an integer"
NO_ANSWER = "no answer"
NO_PROBLEM = "no problem text"
DUPLICATE = "the same problem as an earlier row"
CONFLICT = "the same problem with different answers"

#: The prompt that the published DAPO-Math-17K wraps around each problem.
_WRAPPER = re.compile(
    r"\A\s*Solve the following math problem step by step\. The last line of your response should be of the form "
    r"Answer: .{0,60}?where \$Answer is the answer to the problem\.\s*(?P<problem>.*?)\s*"
    r"Remember to put your answer on its own line after \"Answer:\"\.\s*\Z",
    re.DOTALL,
)


def load_math_file(path: str | Path) -> Splits:
    """Read, check and split a JSONL file of problems.

    Raises `UserError` when the file cannot be read, a row is malformed (with its line), or fewer than three tasks
    remain.
    """
    tasks, dropped = read_problems(Path(path))
    if len(tasks) < 3:
        found = f"{path} holds {len(tasks)} usable problems (dropped: {dropped})"
        raise UserError(f"{found}: expected at least 3, one a split")
    return split(tasks, dropped, str(path))


def read_problems(path: Path) -> tuple[list[Task], dict[str, int]]:
    """All usable problems of a file in its order, and how many rows were dropped for which reason."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except FileNotFoundError:
        raise UserError(f"no file {path}: expected a JSONL file with one math problem a line; check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}; expected a JSONL file in UTF-8") from None
    found: dict[str, list[Task]] = {}  # by content
    dropped: Counter[str] = Counter()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        problem, gold = _columns(line, f"{path}:{number}")
        reason = NO_PROBLEM if not problem else NO_ANSWER if not gold else ""
        value = integer(gold)
        if reason or value is None:
            dropped[reason or NOT_INTEGER] += 1
            continue
        key = content_key(problem)
        found.setdefault(key, []).append(Task(task_id(key), {"question": problem}, value, f"{path.name}:{number}"))
    tasks = []
    for same in found.values():
        if len({t.gold for t in same}) > 1:
            dropped[CONFLICT] += len(same)
        else:
            tasks.append(same[0])
            dropped[DUPLICATE] += len(same) - 1
    return tasks, {reason: n for reason, n in dropped.items() if n}


def split(tasks: list[Task], dropped: dict[str, int], name: str) -> Splits:
    """Deal tasks to D_harness, D_test and D_weight in the order of their content's hash, not of the file."""
    held = min(HELD_OUT, max(1, len(tasks) // 4))
    dealt = sorted(tasks, key=lambda t: t.id)
    harness = TaskSet(dealt[:held], f"{name} (harness)")
    test = TaskSet(dealt[held : 2 * held], f"{name} (test)")
    return Splits(TaskSet(dealt[2 * held :], f"{name} (weight)"), harness, test, dropped)


def task_id(key: str) -> str:
    """A task's id, from its content alone."""
    return "math-" + hashlib.sha256(key.encode()).hexdigest()[:12]


def content_key(problem: str) -> str:
    r"""A problem's content without its typography: two problems with one key are the same problem.

    White space, letter case, dollar signs, `\(`, `\[`, braces, quotes and sentence punctuation go; digits, letters,
    operators and punctuation between digits stay, since `x+y` and `x-y` differ, as 1.5 and 15 do.
    """
    text = unicodedata.normalize("NFKC", problem).casefold().replace("。", ".")
    text = re.sub(r"\\[()\[\]!,;: ]|[\s${}\"'“”‘’`]", "", text)
    return re.sub(r"(?<![0-9])[.,;:?]|[.,;:?](?![0-9])", "", text)


def _columns(line: str, where: str) -> tuple[str, str]:
    """The problem and the gold of one row, "" for one that is there but empty; numbers keep their digits as text."""
    try:
        # parse_int=str: int() refuses more than 4,300 digits
        row = json.loads(line, parse_int=str, parse_float=str, parse_constant=str)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is no JSON: {error}; expected one object a line") from None
    if not isinstance(row, dict):
        raise UserError(f"{where} is a JSON {type(row).__name__}: expected an object with a problem and an answer")
    by_name = {str(k).lower(): v for k, v in row.items()}
    problem, gold = _first(by_name, PROBLEM_COLUMNS), _first(by_name, GOLD_COLUMNS)
    if problem is None or gold is None:
        what, known = ("problem", PROBLEM_COLUMNS) if problem is None else ("answer", GOLD_COLUMNS)
        has = ", ".join(row) or "none"
        raise UserError(f"{where} has no {what}: expected a column {', '.join(known)}; it has {has}")
    return _problem_text(problem[1], where), _gold_text(gold[1], gold[0], where)


def _first(row: dict[str, Any], names: tuple[str, ...]) -> tuple[str, Any] | None:
    return next(((n, row[n]) for n in names if n in row), None)


def _problem_text(value: Any, where: str) -> str:
    if isinstance(value, list) and value and isinstance(value[-1], dict):  # chat messages: the problem is in the last
        value = value[-1].get("content")
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UserError(f"{where}: the problem is a JSON {type(value).__name__}: expected a string or chat messages")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UserError(f"{where}: the problem holds half of a surrogate pair: write it in valid Unicode") from None
    wrapped = _WRAPPER.match(value)
    return (wrapped["problem"] if wrapped else value).strip()


def _gold_text(value: Any, column: str, where: str) -> str:
    if isinstance(value, dict):
        value = value.get("ground_truth")
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if value is None or isinstance(value, bool):
        return ""
    if not isinstance(value, str):
        raise UserError(f"{where}: the {column} is a JSON {type(value).__name__}: expected a string or a number")
    if "####" in value:  # GSM8K: the reasoning, then the answer
        return value.rpartition("####")[2].strip()
    inner = boxed(value)
    return (value if inner is None else inner).strip()
