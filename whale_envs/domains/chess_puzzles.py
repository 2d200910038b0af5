"""Chess puzzles: mates of a generated mini world, or puzzles of the Lichess database."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

from whale_envs.data.chess_lichess import Puzzle, read_lichess
from whale_envs.data.chess_mini import row_id, shipped
from whale_envs.domain import Domain, World
from whale_envs.episode import Episode, Verdict
from whale_envs.errors import UserError
from whale_envs.harness.helpers import tag
from whale_envs.task import SPLITS, Splits, Task, TaskSet
from whale_envs.tools.board import Board
from whale_envs.verifiers.chess_line import ChessGold, ChessLine

#: Rows of a file that go to D_harness and D_test, at most (the paper has 256 each; the harness split also holds the
#: tasks that no proposer sees), and the share of a small file.
HARNESS_ROWS, TEST_ROWS, SHARE = 384, 256, 0.2


class ChessPuzzles(Domain):
    """The chess domain: a puzzle is solved when its whole line is played, or by any mate on the way.

    `dataset` is None for the bundled mini world, or "lichess:PATH.csv" for a file of the Lichess puzzle database.
    A task shows `fen`, `board` (eight lines, White below) and `side` ("white" or "black", which moves); the legal
    moves come from `tools.board()`. Raises `UserError` for a dataset that cannot be used.
    """

    name = "chess"
    max_asks = 18  # twice the nine turns of the paper's h0

    def __init__(self, dataset: str | None = None) -> None:
        if dataset is None:
            self.splits = _mini_splits()
            self.max_tokens = 32  # the longest useful reply of a mini world is about ten tokens
            return
        kind, _, path = dataset.partition(":")
        if kind != "lichess" or not path:
            raise UserError(f"dataset {dataset!r} of chess: expected lichess:PATH.csv, or nothing for the mini world")
        self.splits = _lichess_splits(Path(path).expanduser())

    def world(self, task: Task) -> ChessWorld:
        """See `Domain.world`."""
        return ChessWorld(task)


class ChessWorld(World):
    """One puzzle. Tools: `board() -> BoardView`, `move(uci_or_san) -> BoardView`. What was played decides the verdict,
    whatever the harness returns."""

    def __init__(self, task: Task) -> None:
        self.gold: ChessGold = task.gold
        self.line = ChessLine(task.shown["fen"], self.gold)
        self.board = Board(self.line)
        self.tools = {"board": self.board.board, "move": self.board.move}

    @property
    def over(self) -> bool:
        """Whether the puzzle has been solved or failed."""
        return self.line.status != "open"

    def verdict(self, answer: Any) -> Verdict:
        """See `World.verdict`."""
        return self.line.verdict()

    def behaviours(self, episode: Episode) -> dict[str, bool]:
        """See `World.behaviours`: every reply names a move in its tag, all moves legal, first move right, and so on."""
        played = self.line.played
        return {
            "format followed": all(tag(call.reply.text, "move") is not None for call in episode.calls),
            "moves legal": self.board.illegal == 0,
            "moved": bool(played),
            "first move right": len(played) > 1 or self.line.status == "solved",
        }

    def solve(self) -> str:
        """Play the gold line; returns its last move."""
        for uci in self.gold.line[::2]:
            self.board.move(uci)
        return self.gold.line[-1]


def puzzle_task(task_id: str, fen: str, gold: ChessGold, source: str) -> Task:
    """A puzzle as a task. `fen`: the solver to move."""
    placement, turn = fen.split()[:2]
    squares = re.sub(r"\d", lambda run: "." * int(run[0]), placement)  # as `str(chess.Board(fen))`, without parsing it
    board = "\n".join(" ".join(rank) for rank in squares.split("/"))
    return Task(task_id, {"fen": fen, "board": board, "side": "white" if turn == "w" else "black"}, gold, source)


def _mini_splits() -> Splits:
    def tasks(split: str) -> TaskSet:
        rows = (row for row in shipped() if row.split == split)
        return TaskSet([puzzle_task(row_id(r), r.fen, r.gold, "mini") for r in rows], f"mini chess ({split})")

    return Splits(tasks("weight"), tasks("harness"), tasks("test"))


def _lichess_splits(path: Path) -> Splits:
    """A file's puzzles in three sets; a position's own hash decides its place, not the file's order."""
    puzzles, dropped = read_lichess(path)
    if len(puzzles) < len(SPLITS):
        raise UserError(f"{path} keeps {len(puzzles)} rows: expected at least {len(SPLITS)}, one for each split")
    ranked = sorted(puzzles, key=lambda p: hashlib.sha256(p.key.encode()).digest())
    share = max(1, int(SHARE * len(ranked)))
    test, harness = min(TEST_ROWS, share), min(HARNESS_ROWS, share)

    def tasks(split: str, part: list[Puzzle]) -> TaskSet:
        return TaskSet([puzzle_task(p.id, p.fen, p.gold, "lichess") for p in part], f"{path} ({split})")

    return Splits(
        weight=tasks("weight", ranked[test + harness :]),
        harness=tasks("harness", ranked[test : test + harness]),
        test=tasks("test", ranked[:test]),
        dropped=dropped,
    )
