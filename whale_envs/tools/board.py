"""The board that a chess puzzle is played on: what a player sees of it, and the moves it takes."""

from __future__ import annotations

import functools

import chess

from whale_envs.errors import ToolUseError
from whale_envs.harness.helpers import BoardView
from whale_envs.verifiers.chess_line import ChessLine, parse_move


@functools.lru_cache(maxsize=4096)  # the repeats of one task meet the same positions
def legal_moves(fen: str) -> tuple[tuple[str, str], ...]:
    """Every legal move as (UCI, SAN), in the alphabetical order of the UCI, which says nothing of its worth."""
    board = chess.Board(fen)
    return tuple(sorted((move.uci(), board.san(move)) for move in board.legal_moves))


class Board:
    """The tools `board` and `move` over one puzzle; `illegal` counts the moves that were refused."""

    def __init__(self, line: ChessLine) -> None:
        self.line = line
        self.illegal = 0

    def board(self) -> BoardView:
        """The position now: FEN, eight lines with White below, the legal moves."""
        board = self.line.board
        fen = board.fen()
        return BoardView(fen, str(board), legal_moves(fen), self.line.status != "open", len(board.move_stack))

    def move(self, move: str) -> BoardView:
        """Play a move, in UCI or SAN; the position after it and after the opponent's reply.

        Raises `ToolUseError` for a move that cannot be read or is not legal (the position stays as it was), and
        once the puzzle is over.
        """
        if self.line.status != "open":
            raise ToolUseError("the puzzle is over: no move is taken any more")
        try:
            parsed = parse_move(self.line.board, move)
        except ValueError as error:
            self.illegal += 1
            raise ToolUseError(str(error)) from None
        self.line.play(parsed)
        return self.board()
