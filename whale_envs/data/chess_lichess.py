"""Puzzles of the Lichess open database, from a CSV file as people have it.

Columns are found by name; a file without a header has them found by content. Rows that cannot be played are
dropped, each counted with its reason.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import chess

from whale_envs.data.chess_mini import position_key
from whale_envs.errors import UserError
from whale_envs.verifiers.chess_line import ChessGold

#: Longest line kept, in moves of the solver (the paper: 1 to 9 plies; its h0 has 9 turns).
MAX_SOLVER_MOVES = 9

_FEN = re.compile(r"\s*([pnbrqkPNBRQK1-8]+/){7}[pnbrqkPNBRQK1-8]+ [wb] ")
_MOVES = re.compile(r"\s*[a-h][1-8][a-h][1-8][qrbn]?( +[a-h][1-8][a-h][1-8][qrbn]?)+\s*")
_ID = re.compile(r"\w{3,10}")
_EXPECTED = "expected a Lichess puzzle CSV (PuzzleId,FEN,Moves,...)"


@dataclass(frozen=True)
class Puzzle:
    """A puzzle with the solver to move: `fen` is the position after the opponent's first move."""

    id: str
    fen: str
    key: str
    gold: ChessGold


class Dropped(Exception):
    """Why a row is not kept."""


def read_lichess(path: Path) -> tuple[list[Puzzle], dict[str, int]]:
    """The puzzles of a file in its order, and how many rows were dropped for which reason.

    Raises `UserError` for a file that cannot be read, holds no puzzle columns, or keeps no row.
    """
    puzzles: list[Puzzle] = []
    dropped: Counter[str] = Counter()
    ids: set[str] = set()
    keys: set[str] = set()
    for name, fen, moves in _rows(path, dropped):
        try:
            puzzle = _puzzle(name, fen, moves)
            if puzzle.id in ids:
                raise Dropped("puzzle id seen before")
            if puzzle.key in keys:
                raise Dropped("position seen before")
        except Dropped as reason:
            dropped[str(reason)] += 1
            continue
        ids.add(puzzle.id)
        keys.add(puzzle.key)
        puzzles.append(puzzle)
    if not puzzles:
        reasons = ", ".join(f"{n} x {reason}" for reason, n in dropped.most_common()) or "it is empty"
        raise UserError(f"{path} has no row that can be played ({reasons}): {_EXPECTED}")
    return puzzles, dict(dropped)


def _rows(path: Path, dropped: Counter[str]) -> Iterator[tuple[str, str, str]]:
    """Each row's id (its line's number where there is none), FEN and moves."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file)
            columns: tuple[int | None, int, int] | None = None
            for row in lines:
                if columns is None:
                    columns, is_header = _columns(row, path)
                    if is_header:
                        continue
                at_id, at_fen, at_moves = columns
                if len(row) <= max(at_fen, at_moves):
                    dropped["too few columns" if row else "empty line"] += 1
                    continue
                yield row[at_id] if at_id is not None else f"line{lines.line_num}", row[at_fen], row[at_moves]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"cannot read {path}: {why}; {_EXPECTED}") from None


def _columns(first: list[str], path: Path) -> tuple[tuple[int | None, int, int], bool]:
    """Where id, FEN and moves stand, from the file's first row, and whether that row is a header."""
    names = [cell.strip().lower() for cell in first]
    if "fen" in names and "moves" in names:
        at_id = names.index("puzzleid") if "puzzleid" in names else None
        return (at_id, names.index("fen"), names.index("moves")), True
    fens = [i for i, cell in enumerate(first) if _FEN.match(cell)]
    moves = [i for i, cell in enumerate(first) if _MOVES.fullmatch(cell)]
    if not fens or not moves:
        raise UserError(f"{path} has no columns FEN and Moves (its first row: {','.join(first)[:60]!r}): {_EXPECTED}")
    before = fens[0] - 1
    return (before if before >= 0 and _ID.fullmatch(first[before]) else None, fens[0], moves[0]), False


def _puzzle(name: str, fen: str, moves: str) -> Puzzle:
    """The puzzle of one row, its line played through; `Dropped` when that cannot be done."""
    try:
        board = chess.Board(fen.strip())
    except ValueError:
        raise Dropped("FEN cannot be read") from None
    if not board.is_valid():
        raise Dropped("position is not legal")
    line = moves.split()
    if len(line) < 2:
        raise Dropped("no move for the solver")
    if len(line) % 2:
        raise Dropped("line ends with the opponent's move")
    if len(line) > 2 * MAX_SOLVER_MOVES:
        raise Dropped(f"more than {MAX_SOLVER_MOVES} solver moves")
    start = ""
    try:
        for i, uci in enumerate(line):
            if not (move := board.parse_uci(uci)):
                raise chess.IllegalMoveError(uci)
            line[i] = move.uci()
            board.push(move)
            start = start or board.fen()
    except ValueError:
        raise Dropped("line holds an illegal move") from None
    return Puzzle(name.strip(), start, position_key(start), ChessGold(line[1:]))
