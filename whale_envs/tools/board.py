"""The board that a chess puzzle is played on: what a player sees of it, and the moves it takes."""

from __future__ import annotations

import chess

from whale_envs.errors import ToolUseError
from whale_envs.harness.helpers import BoardView
from whale_envs.verifiers.chess_line import ChessLine, parse_move

LegalMoves = tuple[tuple[str, str], ...]

#: What positions look like that have been met, by all that makes them: the repeats of one task meet the same ones.
_met: dict[tuple[object, ...], BoardView] = {}
MOST_MET = 4096


def look(board: chess.Board, over: bool = False) -> BoardView:
    """A position: its FEN, eight lines with White below, its legal moves, how many moves led to it."""
    men = (board.pawns, board.knights, board.bishops, board.rooks, board.queens, board.kings)
    state = (board.turn, board.castling_rights, board.ep_square, board.halfmove_clock, board.fullmove_number)
    ply = len(board.move_stack)
    position = (*men, board.occupied_co[chess.WHITE], *state, over, ply)
    met = _met.get(position)
    if met is None:
        if len(_met) >= MOST_MET:
            _met.clear()
        met = _met[position] = BoardView(board.fen(), str(board), legal_moves(board), over, ply)
    return met


def legal_moves(board: chess.Board) -> LegalMoves:
    """Every legal move as (UCI, SAN), in the alphabetical order of the UCI, which says nothing of its worth."""
    return tuple(sorted((move.uci(), board.san(move)) for move in board.legal_moves))


class Board:
    """The tools `board` and `move` over one puzzle; `illegal` counts the moves that were refused."""

    def __init__(self, line: ChessLine) -> None:
        self.line = line
        self.illegal = 0

    def board(self) -> BoardView:
        """The position now: FEN, eight lines with White below, the legal moves."""
        return look(self.line.board, self.line.status != "open")

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
