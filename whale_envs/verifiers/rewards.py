r"""The verifiers as reward functions of TRL: `reward_func(prompts, completions, **columns) -> list[float]`.

    GRPOTrainer(model, reward_funcs=[exact_match_reward], train_dataset=dataset, ...)

A completion is a string, or a list of messages, of which those of the assistant count. Its answer is what an
environment would take: the last `<answer>...</answer>` for a question, the last `\boxed{...}` for a problem, and for a
puzzle the last `<move>...</move>` of each message, with one move or several of the solver's in it. The golds are a
column of the dataset, found by name; rename yours if it has another (`dataset.rename_column`). Other columns, and what
TRL passes besides, are passed over. Each function raises `UserError` for a dataset without its columns or with a gold
that it cannot use. A judge has one too: `Judge.reward_func`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import chess
import msgspec

from whale_envs.episode import Verdict
from whale_envs.errors import UserError
from whale_envs.harness.helpers import boxed, tag
from whale_envs.verifiers.chess_line import ChessGold, verify_line
from whale_envs.verifiers.exact_match import exact_match, f1, sub_em
from whale_envs.verifiers.math_answer import integer_match, stated
from whale_envs.verifiers.math_equivalence import math_equivalent

#: Names of the column that holds the accepted answers, a string or a list of them; the first that is there counts.
SHORT_GOLDS = ("gold", "golds", "golden_answers", "answers", "answer")
#: Names of the column that holds a problem's answer, or its solution with the answer in \boxed{} or after "####".
MATH_GOLDS = ("gold", "answer", "ground_truth", "final_answer", "solution")


def exact_match_reward(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
    """Exact match of short answers, 0 or 1; see `exact_match`."""
    return _short(exact_match, completions, columns)


def f1_reward(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
    """Token F1 of short answers, from 0 to 1; see `f1`."""
    return _short(f1, completions, columns)


def sub_em_reward(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
    """Whether a short answer contains a gold, 0 or 1; see `sub_em`."""
    return _short(sub_em, completions, columns)


def integer_reward(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
    """Whether the boxed answer is the gold integer, 0 or 1; see `integer_match`."""
    return _boxed(integer_match, completions, columns)


def math_equivalent_reward(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
    """Whether the boxed answer equals the gold in the judgement of math-verify, 0 or 1; see `math_equivalent`."""
    return _boxed(math_equivalent, completions, columns)


def chess_line_reward(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
    """Whether the moves solve the puzzle, 0 or 1; see `verify_line`.

    Columns: `fen` with the solver to move and `gold` (`{"line": [uci, ...], "mate_in": int or None}`), or `FEN` and
    `Moves` as in the Lichess database, where the opponent moves first.
    """
    scores, puzzles = [], _puzzles(columns)
    check_rows(completions, puzzles)
    for row, (completion, (fen, gold)) in enumerate(zip(completions, puzzles, strict=True)):
        moves = [move for text in _texts(completion) for move in (tag(text, "move") or "").split()]
        try:
            scores.append(verify_line(moves, fen, gold).score)
        except ValueError as error:
            raise UserError(f"row {row} is no puzzle: {error}") from None
    return scores


def short_answers(completions: Sequence[Any]) -> list[str | None]:
    """The short answer of each completion, None for one without."""
    return [_last(lambda text: tag(text, "answer"), completion) for completion in completions]


def short_golds(columns: Mapping[str, Any]) -> list[list[str]]:
    """The accepted answers for each completion."""
    name, values = _column(columns, SHORT_GOLDS)
    golds = [[v] if isinstance(v, str) else v for v in values]
    for row, gold in enumerate(golds):
        if not isinstance(gold, list | tuple) or not all(isinstance(g, str) for g in gold):
            raise UserError(f"row {row} of column {name!r} holds {gold!r:.80}: expected a string or a list of strings")
    return [list(gold) for gold in golds]


def questions(prompts: Sequence[Any], columns: Mapping[str, Any]) -> list[str]:
    """The question of each prompt: the column `question`, or the prompt's last message."""
    if "question" in columns:
        return list(columns["question"])
    return [p if isinstance(p, str) else _content(p[-1]) for p in prompts]


def _short(
    verifier: Callable[[str | None, Sequence[str]], Verdict], completions: Sequence[Any], columns: Mapping[str, Any]
) -> list[float]:
    golds = short_golds(columns)
    check_rows(completions, golds)
    return [verifier(answer, gold).score for answer, gold in zip(short_answers(completions), golds, strict=True)]


def _boxed(
    verifier: Callable[[str | None, str], Verdict], completions: Sequence[Any], columns: Mapping[str, Any]
) -> list[float]:
    name, golds = _column(columns, MATH_GOLDS)
    check_rows(completions, golds)
    scores = []
    for row, (completion, gold) in enumerate(zip(completions, golds, strict=True)):
        try:
            scores.append(verifier(_last(boxed, completion), _stated(gold)).score)
        except ValueError as error:
            raise UserError(f"row {row} of column {name!r}: {error}") from None
    return scores


def _stated(gold: Any) -> str:
    """The answer that a gold states."""
    if isinstance(gold, bool) or not isinstance(gold, str | int):
        raise ValueError(f"a gold is a string or an integer, not {type(gold).__name__}")
    return stated(str(gold))


def _puzzles(columns: Mapping[str, Any]) -> list[tuple[str, ChessGold]]:
    """FEN, with the solver to move, and gold of each row."""
    lichess = "FEN" in columns and "Moves" in columns
    if not lichess and not ("fen" in columns and "gold" in columns):
        raise UserError(f"a puzzle has the columns fen and gold, or FEN and Moves; the dataset has {_named(columns)}")
    pairs = zip(*((columns["FEN"], columns["Moves"]) if lichess else (columns["fen"], columns["gold"])), strict=True)
    puzzles = []
    for row, (fen, gold) in enumerate(pairs):
        try:
            if not isinstance(fen, str) or (lichess and not isinstance(gold, str)):
                raise ValueError(f"FEN and Moves are strings, not {fen!r:.40} and {gold!r:.40}")
            puzzles.append(_lichess(fen, gold) if lichess else (fen, msgspec.convert(gold, ChessGold)))
        except ValueError as error:  # msgspec's ValidationError is one
            raise UserError(f"row {row} is no puzzle: {error}") from None
    return puzzles


def _lichess(fen: str, moves: str) -> tuple[str, ChessGold]:
    """A row of the Lichess database as a puzzle with the solver to move."""
    board = chess.Board(fen)
    first, *line = moves.split()
    board.push_uci(first)
    return board.fen(), ChessGold(line)


def _column(columns: Mapping[str, Any], names: Sequence[str]) -> tuple[str, Sequence[Any]]:
    for name in names:
        if name in columns:
            if not isinstance(columns[name], Iterable):
                raise UserError(f"column {name!r} is {columns[name]!r:.80}: expected a list with one gold a completion")
            return name, list(columns[name])
    raise UserError(f"no column of golds: expected one of {', '.join(names)}; the dataset has {_named(columns)}")


def _named(columns: Mapping[str, Any]) -> str:
    return ", ".join(name for name, values in columns.items() if isinstance(values, list)) or "none"


def check_rows(completions: Sequence[Any], golds: Sequence[Any]) -> None:
    """Raise `UserError` unless there are as many golds as completions."""
    if len(completions) != len(golds):
        raise UserError(f"{len(golds)} golds for {len(completions)} completions: expected one a completion")


def _texts(completion: Any) -> list[str]:
    """The texts of the assistant's messages, or the one text that a completion is."""
    if isinstance(completion, str):
        return [completion]
    if not isinstance(completion, list | tuple) or not all(isinstance(m, Mapping) and "role" in m for m in completion):
        raise UserError(f"a completion is {completion!r:.80}: expected a string or a list of messages")
    return [_content(message) for message in completion if message["role"] == "assistant"]


def _last(read: Callable[[str], str | None], completion: Any) -> str | None:
    """What is read from the last text that has it: no answer begins in one message and ends in another."""
    return next((found for text in reversed(_texts(completion)) if (found := read(text)) is not None), None)


def _content(message: Mapping[str, Any]) -> str:
    """A message's text, its parts joined where it has several; "" for one that only calls tools."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple) or not all(isinstance(part, Mapping) for part in content):
        raise UserError(f"a message's content is {content!r:.80}: expected a string or a list of parts")
    return "".join(part.get("text") or "" for part in content)
