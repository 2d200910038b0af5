"""Chess puzzles: which moves are right, and the verdict on a line of play.

Three rules, the same for generated and for Lichess puzzles:

- a move that gives mate is right and solves the puzzle, wherever in the line it comes;
- the next move of the gold line is right; the last one of it solves the puzzle;
- where the gold says `mate_in`, every move that still forces mate in time is right, on the gold line or off it.

A legal move that is not right ends the puzzle with score 0. Lichess's own rule is the first two: its solver moves
are unique except that any mate wins.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from typing import Literal

import chess
import msgspec

from whale_envs.episode import Verdict

Status = Literal["open", "solved", "wrong"]

#: Castling as people and models write it: O-O, 0-0, o-o, with whatever dash.
_CASTLING = re.compile(r"[Oo0](?:[-\u2010-\u2015][Oo0]){1,2}[+#]?")


class ChessGold(msgspec.Struct, frozen=True):
    """A puzzle's solution: `line` in UCI, solver's and opponent's moves in turn, the solver's first and last.

    `mate_in`: the number of solver moves within which mate is forced; None where the line alone decides.
    """

    line: list[str]
    mate_in: int | None = None


def mating_moves(board: chess.Board) -> Iterator[chess.Move]:
    """The moves that give mate, in the order in which they are generated."""
    for move in board.legal_moves:
        if board.gives_check(move):
            board.push(move)
            mate = not any(board.generate_legal_moves())
            board.pop()
            if mate:
                yield move


def forces_mate(board: chess.Board, move: chess.Move, n: int) -> bool:
    """Whether `move` mates in at most `n` moves of the side to move, itself among them, whatever the defence."""
    board.push(move)
    forced = board.is_checkmate() or (n > 1 and _lost(board, n - 1))
    board.pop()
    return forced


def forcing_moves(board: chess.Board, n: int) -> Iterator[chess.Move]:
    """The moves that force mate in at most `n` moves of the side to move."""
    if n == 1:
        yield from mating_moves(board)
    else:
        yield from (move for move in list(board.legal_moves) if forces_mate(board, move, n))


def _lost(board: chess.Board, n: int) -> bool:
    """Whether the side to move has a defence left to try, and every one allows mate in at most `n`."""
    defences = list(board.legal_moves)
    for defence in defences:
        board.push(defence)
        mated = any(forcing_moves(board, n))
        board.pop()
        if not mated:
            return False
    return bool(defences)


def best_defence(board: chess.Board, n: int) -> chess.Move:
    """The defence that leaves fewest moves that force mate in `n`; of equals the first in UCI order."""
    counted = []
    for defence in board.legal_moves:
        board.push(defence)
        counted.append((sum(1 for _ in forcing_moves(board, n)), defence.uci(), defence))
        board.pop()
    return min(counted)[2]


def is_move(text: object) -> bool:
    """Whether something is written as a move, in UCI or SAN, legal or not."""
    san = text.strip().rstrip("!?") if isinstance(text, str) else ""
    return bool(_CASTLING.fullmatch(san) or chess.SAN_REGEX.match(san) or chess.SAN_REGEX.match(san.lower()))


def parse_move(board: chess.Board, text: object) -> chess.Move:
    """The legal move that `text` names in UCI or SAN; `ValueError` says what is wrong with it.

    Castling is O-O, 0-0, e1g1 or e1h1; a promotion names its piece (a7a8q, a8=Q, a8Q). The signs of SAN's commentary
    ("!", "?!") are passed over.
    """
    if not isinstance(text, str) or not 2 <= len(text.strip()) <= 10:
        raise ValueError(f"{str(text)[:20]!r} is no move: give UCI such as e2e4 or SAN such as Nf3")
    text = text.strip()
    san = text.rstrip("!?")
    if _CASTLING.fullmatch(san):
        san = re.sub(r"[^+#]", lambda sign: "O" if sign[0] in "Oo0" else "-", san)
    for parse, written in ((board.parse_uci, text.lower()), (board.parse_san, san)):
        try:
            if move := parse(written):
                return move
        except chess.AmbiguousMoveError:
            raise ValueError(f"{text!r} names more than one move: give it in UCI") from None
        except ValueError:
            continue
    raise ValueError(f"{text!r} is no legal move here")


class ChessLine:
    """A puzzle being played: `board` with the solver to move while `status` is "open", and the moves so far.

    Raises `ValueError` when the FEN is none.
    """

    def __init__(self, fen: str, gold: ChessGold) -> None:
        self.board = _position(fen).copy(stack=False)
        self.gold = gold
        self.status: Status = "open"
        self._on_line = True
        self._mate = False

    @property
    def played(self) -> list[str]:
        """All moves so far in UCI, the opponent's among them."""
        return [m.uci() for m in self.board.move_stack]

    def play(self, move: chess.Move) -> None:
        """Play a legal move of the solver's, and the opponent's reply to it if the puzzle goes on."""
        line, ply = self.gold.line, len(self.board.move_stack)
        left = self.gold.mate_in - ply // 2 if self.gold.mate_in else 0
        self._on_line = self._on_line and ply < len(line) and _same(self.board, line[ply], move)
        right = self._on_line or (left > 1 and forces_mate(self.board, move, left))
        self.board.push(move)
        self._mate = self.board.is_checkmate()
        if self._mate or (self._on_line and ply + 1 == len(line)):
            self.status = "solved"
        elif not right:
            self.status = "wrong"
        elif self._on_line:
            self.board.push_uci(line[ply + 1])
        else:
            self.board.push(best_defence(self.board, left - 1))

    def verdict(self) -> Verdict:
        """1 for a solved puzzle, 0 for a wrong move or an unfinished line."""
        done = (len(self.board.move_stack) + 1) // 2
        if self.status == "solved":
            return Verdict(1.0, "mate" if self._mate else "the whole line was played")
        if self.status == "wrong":
            return Verdict(0.0, f"wrong move {self.board.peek().uci()} at solver move {done}")
        return Verdict(0.0, f"unfinished after {done} right solver moves")


@functools.lru_cache(maxsize=4096)  # reading a FEN takes longer than a copy, and the repeats of a task start alike
def _position(fen: str) -> chess.Board:
    return chess.Board(fen)


def _same(board: chess.Board, uci: str, move: chess.Move) -> bool:
    """Whether `uci` is `move`, castling written either way."""
    return uci == move.uci() or board.uci(chess.Move.from_uci(uci)) == board.uci(move)


def verify_line(moves: Iterable[str], fen: str, gold: ChessGold) -> Verdict:
    """The verdict on the solver's `moves` (UCI or SAN); one that is not legal ends the line unfinished.

    Raises `ValueError` for a FEN that is none and a gold line that cannot be played.
    """
    line = ChessLine(fen, gold)
    for text in moves:
        if line.status != "open":
            break
        try:
            move = parse_move(line.board, text)
        except ValueError as error:
            return Verdict(0.0, str(error))
        line.play(move)
    return line.verdict()
