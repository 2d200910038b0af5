"""The verifier of chess lines: the whole line, any mate, and every way in which people write a move."""

from pathlib import Path

import chess
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from real_data import REAL, needs_real_data

from whale_envs.data.chess_lichess import PuzzleReader
from whale_envs.verifiers import ChessGold, verify_line
from whale_envs.verifiers.chess_line import parse_move

SHORT = ["O-O", "0-0", "o-o", "O-O+", "0-0!", "O\u2013O", "e1g1", "E1G1", "e1h1", "Kg1"]
LONG = ["O-O-O", "0-0-0", "o-o-o", "O-O-O#", "0-0-0!?", "O\u2011O\u2011O", "e1c1", "e1a1"]
CASTLES = "4k3/8/8/8/8/8/8/R3K2R w KQ - 0 1"


@pytest.mark.parametrize("text", SHORT[:-1])
def test_castling_short_is_read_in_every_notation(text):
    assert parse_move(chess.Board(CASTLES), text).uci() == "e1g1"
    assert parse_move(chess.Board(CASTLES).mirror(), text.replace("1", "8")).uci() == "e8g8"


@pytest.mark.parametrize("text", LONG)
def test_castling_long_is_read_in_every_notation(text):
    assert parse_move(chess.Board(CASTLES), text).uci() == "e1c1"
    assert parse_move(chess.Board(CASTLES).mirror(), text.replace("1", "8")).uci() == "e8c8"


@pytest.mark.parametrize("text", [*SHORT, *LONG, "0-0-0-0", "O", "0"])
def test_castling_that_is_not_allowed_is_no_move(text):
    with pytest.raises(ValueError):
        parse_move(chess.Board("4k3/8/8/8/8/8/8/R3K2R w - - 0 1".replace("R3", "RP2")), text)


@pytest.mark.parametrize("gold", ["e1g1", "e1h1"])
@pytest.mark.parametrize("text", SHORT[:-1])
def test_a_gold_that_castles_is_met_in_every_notation_and_the_line_goes_on(gold, text):
    line = ChessGold([gold, "e8d7", "f1d1"])
    assert verify_line([text, "Rfd1+"], CASTLES, line).score == 1
    assert verify_line([text, "Rf7"], CASTLES, line).score == 0
    assert verify_line(["O-O-O", "Rd1"], CASTLES, line).score == 0


def test_an_opponents_castling_is_played_in_either_notation():
    fen = "r3k3/8/8/8/8/8/7P/4K3 w q - 0 1"
    for reply in ("e8c8", "e8a8"):
        assert verify_line(["h2h4", "h5"], fen, ChessGold(["h2h4", reply, "h4h5"])).score == 1


@pytest.mark.parametrize("text", ["a7a8n", "A7A8N", "a8=N", "a8N", "a7a8N", "a7-a8=N", "a8=N!"])
def test_a_promotion_is_to_the_piece_that_the_line_has(text):
    fen, gold = "8/P1k5/8/8/8/8/8/4K3 w - - 0 1", ChessGold(["a7a8n"])
    assert verify_line([text], fen, gold).score == 1
    assert verify_line(["a8=Q"], fen, gold).score == 0
    for unnamed in ("a7a8", "a8"):
        assert "no legal move" in verify_line([unnamed], fen, gold).reason


def test_any_mate_counts_promotions_to_another_piece_among_them():
    fen = "7k/P7/6K1/8/8/8/8/8 w - - 0 1"
    for move in ("a8=Q#", "a7a8r", "a8R"):
        assert verify_line([move], fen, ChessGold(["a7a8q"])).score == 1
    assert verify_line(["a8=B"], fen, ChessGold(["a7a8q"])).score == 0


@settings(max_examples=60)
@given(st.data())
def test_a_line_scores_in_uci_and_in_san_when_it_is_whole_and_never_before(data):
    board, line, sans = chess.Board(), [], []
    for _ in range(2 * data.draw(st.integers(1, 5)) - 1):
        move = data.draw(st.sampled_from(sorted(board.legal_moves, key=str)))
        line.append(move.uci())
        sans.append(board.san(move))
        board.push(move)
        if board.is_game_over():
            break
    if len(line) % 2 == 0 or any(s.endswith("#") for s in sans):
        return
    gold = ChessGold(line)
    for written in (line, sans):
        assert verify_line(written[::2], chess.STARTING_FEN, gold).score == 1
        assert verify_line(written[:-1:2], chess.STARTING_FEN, gold).score == 0
        assert verify_line([*written[::2], "e4"], chess.STARTING_FEN, gold).score == 1  # over is over


def test_a_gold_that_cannot_be_played_is_our_bug_and_no_verdict():
    for gold in (["e2e4", "e2e4", "d2d4"], ["e2e4", "nonsense", "d2d4"]):
        with pytest.raises(ValueError):
            verify_line(["e4", "d4"], chess.STARTING_FEN, ChessGold(gold))


@needs_real_data
def test_every_real_line_scores_in_uci_and_in_san_and_fails_without_its_last_move():
    reader = PuzzleReader()
    pool = reader.pool(reader.read(Path(REAL, "chess", "lichess_puzzles_1000.csv")))
    assert len(pool.tasks) > 900
    for task in pool.tasks.values():
        fen, line = task.shown["fen"], task.gold.line
        assert verify_line(line[::2], fen, task.gold).score == 1
        assert verify_line(chess_sans(fen, line)[::2], fen, task.gold).score == 1
        assert verify_line(line[:-2:2], fen, task.gold).score == 0


def chess_sans(fen, line):
    board = chess.Board(fen)
    return [board.san_and_push(chess.Move.from_uci(uci)) for uci in line]
