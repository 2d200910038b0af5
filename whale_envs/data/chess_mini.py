"""The mini chess world: mate-in-one and mate-in-two positions from generated games with few pieces.

A game starts from a random placement and goes on with semi-random legal moves; a position counts when a solver has
found its mates. The shipped rows come from `python -m whale_envs.data.chess_mini`, which writes `chess_mini.jsonl`
beside this file, the same bytes each time.
"""

from __future__ import annotations

import functools
import hashlib
import random
from collections.abc import Container, Iterator
from pathlib import Path

import chess
import msgspec

from whale_envs.episode import write_atomic
from whale_envs.verifiers.chess_line import ChessGold, best_defence, forcing_moves, mating_moves

ROWS = Path(__file__).with_name("chess_mini.jsonl")
SEED = 2609
#: Rows in each split. The harness split has room for a part that no proposer sees; "demo" rows belong to no task
#: set: the bundled model's demonstrations are made from them.
SIZES = {"weight": 1024, "harness": 384, "test": 256, "demo": 384}
#: One row in this many is a mate in two.
MATE_IN_TWO_EVERY = 5
#: What the side that mates has besides its king, and what the other side has.
ATTACKERS = ("Q", "RR", "QR", "QB", "QN", "QP", "RB", "RN", "RP", "QRP", "RRP", "QBN", "RBN", "QPP", "BBN", "RRN")
DEFENDERS = ("", "P", "PP", "N", "B", "R", "RP", "NP", "BP", "PPP")
#: Plies of one game, how often the attacker presses, and how many moves it then looks at.
PLIES, PRESSES, LOOKS_AT = 20, 0.6, 6
#: Positions whose defending king has more squares to go to are not searched for mates: nearly none would be found.
FLIGHTS = 3
#: Moves and mates that a position may have: enough moves to choose from, few enough mates that guessing fails.
LEGAL, MATES = range(14, 33), 2


class ChessRow(msgspec.Struct, frozen=True):
    """A position with the solver to move, and its solution."""

    split: str
    fen: str
    gold: ChessGold


def position_key(fen: str) -> str:
    """The position without its move counters; its mirror image and the same with colours exchanged give one key."""
    placement, turn, castling, passant = fen.split()[:4]
    castling = "".join(sorted(castling))
    exchanged = (
        "/".join(reversed(placement.swapcase().split("/"))),
        "b" if turn == "w" else "w",
        "".join(sorted(castling.swapcase())),
        passant.translate(str.maketrans("12345678", "87654321")),
    )
    forms = [(placement, turn, castling, passant), exchanged]
    if castling == "-":  # with castling rights left and right differ
        files = str.maketrans("abcdefgh", "hgfedcba")
        forms += [("/".join(r[::-1] for r in p.split("/")), t, c, e.translate(files)) for p, t, c, e in forms]
    return " ".join(min(forms))


def placement(rng: random.Random) -> chess.Board:
    """A random legal position with few pieces, the attacker to move."""
    attacker = rng.choice((chess.WHITE, chess.BLACK))
    men = [(chess.KING, attacker), (chess.KING, not attacker)]
    for kit, colour in ((rng.choice(ATTACKERS), attacker), (rng.choice(DEFENDERS), not attacker)):
        men += [(chess.PIECE_SYMBOLS.index(symbol.lower()), colour) for symbol in kit]
    while True:
        board = chess.Board(None)
        board.turn = attacker
        for square, (piece, colour) in zip(rng.sample(chess.SQUARES, len(men)), men, strict=True):
            board.set_piece_at(square, chess.Piece(piece, colour))
        if board.is_valid() and (_flights(board) <= FLIGHTS or rng.random() < 0.1):
            return board


def _flights(board: chess.Board) -> int:
    """How many squares the king of the side that is not to move could go to."""
    king = board.king(not board.turn)
    assert king is not None
    around = board.attacks(king) & ~board.occupied_co[not board.turn]
    return sum(1 for square in around if not board.is_attacked_by(board.turn, square))


def _move(board: chess.Board, attacking: bool, rng: random.Random) -> chess.Move:
    """A random move; the attacker often takes, of some random moves, the one that leaves fewest replies."""
    moves = list(board.legal_moves)
    if not attacking or rng.random() >= PRESSES:
        return rng.choice(moves)
    replies = []
    for move in rng.sample(moves, min(LOOKS_AT, len(moves))):
        board.push(move)
        replies.append((board.legal_moves.count() or 99, move))
        board.pop()
    return min(replies, key=lambda reply: reply[0])[1]


def puzzles(rng: random.Random, mate_in_two: bool) -> Iterator[tuple[str, ChessGold]]:
    """Positions (FEN) with a forced mate in one, or in two and not in one; a few from each game, for ever."""
    while True:
        board = placement(rng)
        before: str | None = None  # the attacker's last position, when it held no mate in one
        for ply in range(PLIES):
            if not any(board.legal_moves):
                break
            attacking = ply % 2 == 0
            if attacking:
                board.halfmove_clock, board.fullmove_number = 0, 1
                fen = board.fen()
                mate = _flights(board) <= FLIGHTS and next(mating_moves(board), None)
                if mate and mate_in_two and before and (gold := _gold(before, 2)):  # likely, one move before a mate
                    yield before, gold
                elif mate and not mate_in_two and (gold := _gold(fen, 1)):
                    yield fen, gold
                before = None if mate else fen
            board.push(_move(board, attacking, rng))


def _gold(fen: str, n: int) -> ChessGold | None:
    """The solution of a position with a mate in `n`; None if it has none or too many, or too few or many moves."""
    board = chess.Board(fen)
    if board.legal_moves.count() not in LEGAL or (n > 1 and any(mating_moves(board))):
        return None
    right = list(forcing_moves(board, n))
    if not 1 <= len(right) <= MATES:
        return None
    line = [min(right, key=chess.Move.uci)]
    board.push(line[0])
    while not board.is_checkmate():
        n -= 1
        line.append(best_defence(board, n))
        board.push(line[-1])
        line.append(min(forcing_moves(board, n), key=chess.Move.uci))
        board.push(line[-1])
    return ChessGold([m.uci() for m in line], (len(line) + 1) // 2)


def generate(seed: int, sizes: dict[str, int], taken: Container[str] = frozenset()) -> Iterator[ChessRow]:
    """`sizes` rows of each split, no two of one position and none with a key in `taken`."""
    rng = random.Random(seed)
    sources = {two: puzzles(rng, two) for two in (False, True)}
    seen: set[str] = set()
    for split, size in sizes.items():
        for at in range(size):
            for fen, gold in sources[at % MATE_IN_TWO_EVERY == 0]:
                key = position_key(fen)
                if key not in seen and key not in taken:
                    seen.add(key)
                    yield ChessRow(split, fen, gold)
                    break


@functools.cache
def shipped() -> tuple[ChessRow, ...]:
    """The rows that ship with the package."""
    decode = msgspec.json.Decoder(ChessRow).decode
    return tuple(decode(line) for line in ROWS.read_bytes().splitlines())


def row_id(row: ChessRow) -> str:
    """A row's id: the kind of puzzle and a hash of its position's key."""
    return f"mate{row.gold.mate_in}-{hashlib.sha256(position_key(row.fen).encode()).hexdigest()[:10]}"


if __name__ == "__main__":
    write_atomic(ROWS, b"".join(msgspec.json.encode(row) + b"\n" for row in generate(SEED, SIZES)))
