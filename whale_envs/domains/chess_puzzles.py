"""Chess puzzles: mates of a generated mini world, or puzzles of the Lichess database."""

from __future__ import annotations

import functools
from typing import Any

from whale_envs.data.chess_lichess import puzzle_task
from whale_envs.data.chess_mini import position_key, row_id, shipped
from whale_envs.data.folder import kept_splits
from whale_envs.domain import Domain, World
from whale_envs.episode import Episode, Verdict
from whale_envs.errors import unknown
from whale_envs.task import Splits, Task, TaskSet
from whale_envs.tools.board import Board
from whale_envs.verifiers.chess_line import ChessGold, ChessLine, is_move


class ChessPuzzles(Domain):
    """The chess domain: a puzzle is solved when its whole line is played, or by any mate on the way.

    `dataset` is None for the bundled mini world, or a path to puzzles of the Lichess database: a prepared folder, a
    file, or a folder of files (see `whale_envs.data.folder.load_splits`).
    A task shows `fen`, `board` (eight lines, White below) and `side` ("white" or "black", which moves); the legal
    moves come from `tools.board()`. `verifier` is "line", the one that there is. Raises `UserError` for a dataset that
    cannot be used.
    """

    name = "chess"
    max_asks = 18  # twice the nine turns of the paper's h0

    def __init__(self, dataset: str | None = None, verifier: str = "line") -> None:
        if verifier != "line":
            raise unknown("verifier of chess", verifier, ["line"])
        self.verifier = verifier
        if dataset is None:
            self.splits = _mini_splits()
            self.max_tokens = 32  # the longest useful reply of a mini world is about ten tokens
            return
        self.splits = kept_splits(dataset, self.name)

    def content(self, task: Task) -> str:
        """See `Domain.content`."""
        return position_key(task.shown["fen"])

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
        """See `World.behaviours`: a move, legal or not, came of every reply, a move was refused, and so on."""
        played = len(self.line.board.move_stack)
        moves = (c for c in episode.tool_calls if c.name == "move")
        brought = {c.after for c in moves if not c.error or any(map(is_move, (*c.args, *c.kwargs.values())))}
        return {
            "format followed": brought.issuperset(range(1, len(episode.calls) + 1)),
            "illegal move": self.board.illegal > 0,
            "moved": played > 0,
            "first move right": played > 1 or self.line.status == "solved",
            "cap hit": episode.truncated,
        }

    def solve(self) -> str:
        """Play the gold line; returns its last move."""
        for uci in self.gold.line[::2]:
            self.board.move(uci)
        return self.gold.line[-1]


@functools.cache
def _mini_splits() -> Splits:
    def tasks(split: str) -> TaskSet:
        rows = (row for row in shipped() if row.split == split)
        return TaskSet([puzzle_task(row_id(r), r.fen, r.gold, "mini") for r in rows], f"mini chess ({split})")

    return Splits(tasks("weight"), tasks("harness"), tasks("test"))
