"""What a harness's source holds of the tasks that it is scored on: their texts, ids, answers, positions and lines.

A text of three common words proves nothing, so each kind has a bar that no general sentence reaches by chance:
a passage of words that few rows share, an id, a position, a line of two moves, an answer of two words. Answers of one
word or number count only where several stand together.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from whale_envs.harness.audit.finding import Finding
from whale_envs.harness.audit.syntax import fold, found
from whale_envs.harness.helpers import words
from whale_envs.task import Task

#: Words in a passage of a shown text that stands for its row.
PASSAGE = 6
#: A passage or a literal is particular when so few rows hold it: this share of them, and at least two.
PARTICULAR = 0.02
#: Words from which on a literal that few rows hold is no kind of question.
LONG = 4
#: Answers of one word or number in one place, from which on they are no coincidence.
TOGETHER = 3
#: A field with at most so many different values (the side to move) describes a kind of task, not a row.
KINDS = 8

_SPLIT = re.compile(r"[\s,;|\"'`(){}\[\]<>]+")
_UCI = re.compile(r"\b[a-h][1-8][a-h][1-8][qrbn]?\b")


class Rows:
    """What can be recognised of a set of tasks."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.texts: list[str] = []
        self.few = max(2, round(PARTICULAR * len(tasks)))
        self.tokens: dict[str, str] = {}  # a row's id, its position: what it is
        self.answers: dict[str, set[tuple[str, ...]]] = {}  # by first word
        self.short: set[str] = set()
        self.lines: set[tuple[str, ...]] = set()
        passages: Counter[tuple[str, ...]] = Counter()
        fields = {name for task in tasks for name in task.shown}
        self.kinds: set[str] = set()  # values of fields that describe a kind of task
        for name in sorted(fields):
            values = {v for task in tasks if isinstance(v := task.shown.get(name), str)}
            if len(values) <= min(KINDS, len(tasks) // 2):
                self.kinds |= values
        for task in tasks:
            if len(task.id) >= 6 and not task.id.isdecimal():
                self.tokens[task.id] = "the id of a task"
            for text in task.shown.values():
                if not isinstance(text, str) or text in self.kinds:
                    continue
                if text.partition(" ")[0].count("/") == 7:
                    self.tokens[text.partition(" ")[0]] = "the position of a task"
                elif any(len(word) > 2 for word in words(text)):  # a board's rows are no text
                    self.texts.append(text)
                    passages.update(set(_passages(words(text))))
            self._gold(task.gold)
        self.passages = {p for p, rows in passages.items() if rows <= self.few}
        self.lengths = sorted({len(line) for line in self.lines})
        self._folded = [text.casefold() for text in self.texts]

    def _gold(self, gold: Any) -> None:
        line = getattr(gold, "line", None)
        if line is not None:
            self.lines |= {tuple(line[: 2 + at]) for at in range(len(line) - 1)}
            return
        for answer in gold if isinstance(gold, list | tuple) else [gold]:
            said = tuple(_content(str(answer)))
            if len(said) >= 2 and not "".join(said).isdecimal():
                self.answers.setdefault(said[0], set()).add(said)
            elif said and len(said[0]) >= 3:
                self.short.add(said[0])

    def holding(self, literal: str) -> int:
        """How many shown texts hold a literal, in whatever case."""
        part = literal.casefold()
        return sum(part in text for text in self._folded)

    def particular(self, literal: str) -> bool:
        """Whether a literal picks out a few rows: few hold it, and it has a name or a number in it, or is long. A
        common word ("when", "how many") may be rare in few rows, and says what kind of question it is."""
        if literal in self.kinds or not words(literal) or not 0 < self.holding(literal) <= self.few:
            return False
        part = literal.casefold()
        places = [(t, folded.find(part)) for t, folded in zip(self.texts, self._folded, strict=True) if part in folded]
        return len(words(literal)) >= LONG or any(_names(text, at, at + len(part)) for text, at in places)


def _names(text: str, start: int, end: int) -> bool:
    """Whether a part of a text holds a digit, or a capital that does not begin a sentence."""
    capitals = re.finditer(r"\d|(?<=[^\W_])[A-Z]|(?<![.?!:] )(?<!^)\b[A-Z]", text)
    return any(start <= found.start() < end for found in capitals)


def _passages(said: list[str]) -> Iterator[tuple[str, ...]]:
    """The runs of `PASSAGE` words; a text of three words to that is one itself."""
    if 3 <= len(said) < PASSAGE:
        yield tuple(said)
    for at in range(len(said) - PASSAGE + 1):
        yield tuple(said[at : at + PASSAGE])


def _content(text: str) -> list[str]:
    return [w for w in words(text) if w not in ("a", "an", "the")]


def copied(tree: ast.Module, rows: Rows) -> Iterator[Finding]:
    """The literals of a syntax tree that hold a part of a row."""
    folded: set[ast.AST] = set()
    for node in ast.walk(tree):  # breadth first: a sum of strings comes before its parts
        text = fold(node) if node not in folded else None
        if text is not None:
            folded |= set(ast.walk(node))
            if what := _held(text, rows):
                yield found(node, f"holds {what}: {_brief(text)}")
        elif isinstance(node, ast.List | ast.Tuple | ast.Set | ast.Dict) and node not in folded:
            folded |= {n for n in ast.walk(node) if isinstance(n, type(node))}
            items = {str(n.value).strip().lower() for n in ast.walk(node) if isinstance(n, ast.Constant)}
            if len(known := items & rows.short) >= TOGETHER:
                yield found(node, f"holds {len(known)} answers of tasks: {_brief(', '.join(sorted(known)))}")


def _held(text: str, rows: Rows) -> str:
    """What of a row a text holds, "" for nothing."""
    for token in _SPLIT.split(text):
        if what := rows.tokens.get(token):
            return what
    tokens = {token.strip().lower() for token in _SPLIT.split(text)} - {""}
    if len(known := tokens & rows.short) >= max(TOGETHER, len(tokens) // 2):  # a list of them, not a sentence
        return f"{len(known)} answers of tasks"
    said = _content(text)
    for at, first in enumerate(said):
        if any(tuple(said[at : at + len(answer)]) == answer for answer in rows.answers.get(first, ())):
            return "the answer of a task"
    if any(p in rows.passages for p in _passages(words(text))):
        return "the text of a task"
    moves = _UCI.findall(text)
    if any(tuple(moves[at : at + length]) in rows.lines for at in range(len(moves)) for length in rows.lengths):
        return "the solution of a task"
    return ""


def _brief(text: str) -> str:
    line = " ".join(text.split())
    return repr(line if len(line) <= 60 else line[:57] + "...")
