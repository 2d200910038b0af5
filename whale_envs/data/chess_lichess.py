"""Puzzles of the Lichess open database, from files as people have them.

Columns are found by name; in a CSV file without a header by content. A row whose line cannot be played is dropped.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import ClassVar

import chess

from whale_envs.data.chess_mini import position_key
from whale_envs.data.files import Layout, Row
from whale_envs.data.reader import Dropped, TaskReader
from whale_envs.errors import UserError
from whale_envs.task import Task
from whale_envs.verifiers.chess_line import ChessGold, verify_line

#: Longest line kept of a user's own file, in plies from the solver's first move: nine moves of the solver.
MAX_PLIES = 17

_FEN = re.compile(r"\s*([pnbrqkPNBRQK1-8]+/){7}[pnbrqkPNBRQK1-8]+ [wb] ")
_MOVES = re.compile(r"\s*[a-h][1-8][a-h][1-8][qrbn]?( +[a-h][1-8][a-h][1-8][qrbn]?)+\s*")
_ID = re.compile(r"\w{3,10}")


def name_columns(rows: Sequence[Sequence[str]]) -> list[str] | None:
    """FEN and moves by what the first row with both looks like; a short word before the FEN is the puzzle's id."""
    for row in rows:
        fens = [i for i, cell in enumerate(row) if _FEN.match(cell)]
        moves = [i for i, cell in enumerate(row) if _MOVES.fullmatch(cell)]
        if fens and moves:
            names = [""] * len(row)
            names[fens[0]], names[moves[0]] = "fen", "moves"
            if fens[0] and _ID.fullmatch(row[fens[0] - 1]):
                names[fens[0] - 1] = "puzzleid"
            return names
    return None


class PuzzleReader(TaskReader):
    """Lichess puzzles: the FEN is before the opponent's move, so `moves[0]` is played first.

    A task's content is its position without move counters; its mirror image and the same with colours exchanged are
    the same content. `max_plies` is the longest line kept, from the solver's first move.
    """

    domain = "chess"
    layout = Layout(
        expected="a table of Lichess puzzles (PuzzleId,FEN,Moves,...)",
        columns=(("fen",), ("moves",)),
        extras=("puzzleid",),
        name_columns=name_columns,
    )
    gold: ClassVar[type] = ChessGold

    def __init__(self, max_plies: int = MAX_PLIES) -> None:
        self.max_plies = max_plies

    def task(self, row: Row) -> tuple[str, Task]:
        """See `TaskReader.task`."""
        (_, fen), (name, moves) = self.cell(row, 0), self.cell(row, 1)
        if not isinstance(moves, str | list | None):
            raise UserError(f"{row.where}: the {name} is a {type(moves).__name__}: expected moves in UCI, as e2e4 e7e5")
        start, line = self._play(str(fen), moves.split() if isinstance(moves, str) else [str(m) for m in moves or ()])
        key = position_key(start)
        identity = str(row.cells.get("puzzleid") or "").strip()
        return key, puzzle_task(identity or f"chess-{_hash(key)}", start, ChessGold(line), "lichess")

    def merge(self, tasks: Sequence[Task]) -> Task | None:
        """The longest line, if it solves each puzzle from the same position. Mirror images count as the first one."""
        same = [t for t in tasks if _position(t) == _position(tasks[0])]
        best = max(same, key=lambda t: len(t.gold.line))
        agree = all(verify_line(best.gold.line[::2], best.shown["fen"], t.gold).score == 1 for t in same)
        return best if agree else None

    def _play(self, fen: str, line: list[str]) -> tuple[str, list[str]]:
        """The position with the solver to move, and the line from there; `Dropped` when it cannot be played."""
        try:
            board = chess.Board(fen.strip())
        except ValueError:
            raise Dropped("FEN cannot be read") from None
        if not board.is_valid():
            raise Dropped("position is not legal")
        if len(line) < 2:
            raise Dropped("no move for the solver")
        if len(line) % 2:
            raise Dropped("line ends with the opponent's move")
        if len(line) - 1 > self.max_plies:
            raise Dropped(f"more than {self.max_plies} plies")
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
        return start, line[1:]


def puzzle_task(task_id: str, fen: str, gold: ChessGold, source: str) -> Task:
    """A puzzle as a task. `fen`: the solver to move."""
    placement, turn = fen.split()[:2]
    squares = re.sub(r"\d", lambda run: "." * int(run[0]), placement)  # as `str(chess.Board(fen))`, without parsing it
    board = "\n".join(" ".join(rank) for rank in squares.split("/"))
    return Task(task_id, {"fen": fen, "board": board, "side": "white" if turn == "w" else "black"}, gold, source)


def _position(task: Task) -> list[str]:
    """A task's position without its move counters."""
    fen: str = task.shown["fen"]
    return fen.split()[:4]


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:12]
