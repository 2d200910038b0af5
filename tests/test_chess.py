"""Chess: the rules of a puzzle, the mini world's promises, the shipped harnesses."""

import itertools
import random
from collections import Counter

import chess
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whale_envs import HarnessEnv, UserError, load_domain
from whale_envs.data.chess_lichess import puzzle_task
from whale_envs.data.chess_mini import LEGAL, MATES, SEED, SIZES, generate, position_key, row_id, shipped
from whale_envs.domains.chess_puzzles import ChessPuzzles, ChessWorld
from whale_envs.errors import ToolUseError
from whale_envs.harness.helpers import BoardView
from whale_envs.task import SPLITS
from whale_envs.tools.board import legal_moves, look
from whale_envs.verifiers.chess_line import (
    ChessGold,
    best_defence,
    forcing_moves,
    mating_moves,
    parse_move,
    verify_line,
)

BACK_RANK = "6k1/5ppp/8/8/8/8/8/R3K2R w K - 0 1"  # Ra8 mates, O-O and other moves do not
TWO_ROOKS = "7k/8/8/8/8/8/R7/1R5K w - - 0 1"  # a ladder: several first moves mate in two


@pytest.fixture(scope="module")
def domain():
    return load_domain("chess")


def world(fen, line, mate_in=None):
    return ChessWorld(puzzle_task("t", fen, ChessGold(line, mate_in), "test"))


def brute_force(board, n):
    """The first moves that force mate in `n`, by the definition alone."""

    def wins(n):
        for move in list(board.legal_moves):
            board.push(move)
            won = board.is_checkmate() or (
                n > 1 and any(board.legal_moves) and all(answered(d, n) for d in list(board.legal_moves))
            )
            board.pop()
            if won:
                yield move

    def answered(defence, n):
        board.push(defence)
        found = any(True for _ in wins(n - 1))
        board.pop()
        return found

    return set(wins(n))


# the rules


def test_the_whole_line_scores_and_an_unfinished_one_does_not():
    line = ["e2e4", "e7e5", "g1f3"]
    assert verify_line(["e2e4", "Nf3"], chess.STARTING_FEN, ChessGold(line)).score == 1
    assert verify_line(["e4"], chess.STARTING_FEN, ChessGold(line)).score == 0
    assert verify_line([], chess.STARTING_FEN, ChessGold(line)).score == 0


def test_a_legal_move_off_the_line_ends_the_puzzle_for_good():
    w = world(chess.STARTING_FEN, ["e2e4", "e7e5", "g1f3"])
    assert w.tools["move"]("d2d4").over and w.over
    with pytest.raises(ToolUseError, match="over"):
        w.tools["move"]("e7e5")
    assert w.verdict("e2e4").score == 0


@pytest.mark.parametrize("answer", [None, "e2e4", {"score": 1}, ["e2e4", "g1f3"], 1.0, True])
def test_what_a_harness_returns_changes_nothing(answer):
    assert world(chess.STARTING_FEN, ["e2e4"]).verdict(answer).score == 0
    w = world(chess.STARTING_FEN, ["e2e4"])
    w.solve()
    assert w.verdict(answer).score == 1


def test_any_mate_counts_wherever_it_comes():
    assert verify_line(["Ra8#"], BACK_RANK, ChessGold(["e1g1", "g8f8", "a1a8"])).score == 1
    fen = "7k/R7/8/8/8/8/8/1R2Q2K w - - 0 1"
    mates = [m.uci() for m in mating_moves(chess.Board(fen))]
    assert len(mates) > 1
    assert {verify_line([uci], fen, ChessGold([mates[0]], 1)).score for uci in mates} == {1}


def test_every_first_move_that_forces_mate_is_right_and_the_defence_is_the_hardest():
    board = chess.Board(TWO_ROOKS)
    firsts = {m.uci() for m in forcing_moves(board, 2)}
    assert len(firsts) > 1
    line = ["a2a7", "h8g8", "b1b8"]
    for move in board.legal_moves:
        w = world(TWO_ROOKS, line, 2)
        after = w.tools["move"](move.uci())
        assert after.over == (move.uci() not in firsts)
        if not after.over:
            assert after.ply == 2
            mate = next(uci for uci, san in after.legal if san.endswith("#"))
            assert w.tools["move"](mate).over and w.verdict(None).score == 1


def test_a_mate_in_two_that_takes_three_is_wrong():
    w = world(TWO_ROOKS, ["a2a7", "h8g8", "b1b8"], 2)
    w.tools["move"]("a2a7")
    assert w.tools["move"]("h1g1").over
    assert w.verdict(None).score == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "e2e5",
        "Ke8",
        "0000",
        "--",
        "Z0",
        "@@@@",
        "Q@e4",
        "e2",
        "e9e4",
        "e2e4 e2e4",
        "é2e4",
        "N" * 4000,
        None,
        7,
        ["e2e4"],
        {},
        True,
    ],
)
def test_an_unreadable_or_illegal_move_is_refused_and_leaves_the_board(text):
    w = world(chess.STARTING_FEN, ["e2e4"])
    before = w.tools["board"]()
    with pytest.raises(ToolUseError) as error:
        w.tools["move"](text)
    assert len(str(error.value)) < 120 and "\n" not in str(error.value)
    assert w.tools["board"]() == before and not w.over


def test_an_ambiguous_san_is_refused_with_the_way_out():
    with pytest.raises(ValueError, match="more than one"):
        parse_move(chess.Board("k7/8/8/8/8/8/8/R4R1K w - - 0 1"), "Rd1")


@pytest.mark.parametrize("text", ["e2e4", "E2E4", " e2e4 ", "e4", "e4+", "e4!"[:2]])
def test_a_move_is_read_in_uci_and_san(text):
    assert parse_move(chess.Board(), text).uci() == "e2e4"


def test_castling_and_promotion_are_read():
    board = chess.Board("8/P6k/8/8/8/8/8/R3K2R w KQ - 0 1")
    for text in ("O-O", "0-0", "e1g1"):
        assert parse_move(board, text).uci() == "e1g1"
    assert parse_move(board, "a8=N").uci() == parse_move(board, "a7a8n").uci() == "a7a8n"
    with pytest.raises(ValueError):
        parse_move(board, "a7a8")


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=12))
def test_no_text_breaks_the_board(text):
    w = world(BACK_RANK, ["a1a8"], 1)
    try:
        w.tools["move"](text)
    except ToolUseError:
        assert not w.over
    assert w.verdict(None).score in (0, 1)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**9))
def test_legal_moves_are_the_positions_own_in_alphabetical_order(seed):
    rng, board = random.Random(seed), chess.Board()
    for _ in range(rng.randrange(40)):
        if not any(board.legal_moves):
            break
        board.push(rng.choice(list(board.legal_moves)))
    rows = legal_moves(board)
    assert [uci for uci, _ in rows] == sorted(m.uci() for m in board.legal_moves)
    assert all(board.parse_san(san).uci() == uci for uci, san in rows)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**9))
def test_a_position_that_has_been_met_looks_as_it_does_by_itself(seed):
    rng, board = random.Random(seed), chess.Board()
    for _ in range(rng.randrange(60)):
        if not any(board.legal_moves):
            break
        board.push(rng.choice(list(board.legal_moves)))
        other = board.copy()
        # all that a FEN tells apart, where the men stand alike
        other.castling_rights &= rng.choice([chess.BB_ALL, chess.BB_RANK_1])
        other.fullmove_number += rng.randrange(2)
        other.halfmove_clock += rng.randrange(2)
        for position in (board, other):
            for _ in range(2):
                for over in (False, True):
                    seen = position.fen(), str(position), legal_moves(position), over, len(position.move_stack)
                    assert look(position, over) == BoardView(*seen)


# the solver and the mini world


def test_the_solver_agrees_with_the_definition():
    rng = random.Random(5)
    for row in rng.sample([r for r in shipped() if r.gold.mate_in == 1], 12):
        board = chess.Board(row.fen)
        assert set(forcing_moves(board, 1)) == brute_force(board, 1)
    for row in rng.sample([r for r in shipped() if r.gold.mate_in == 2], 2):
        board = chess.Board(row.fen)
        assert set(forcing_moves(board, 2)) == brute_force(board, 2)


def test_the_defence_leaves_as_few_mates_as_any():
    board = chess.Board(TWO_ROOKS)
    board.push_uci("a2a7")
    defence = best_defence(board, 1)
    counts = {}
    for move in list(board.legal_moves):
        board.push(move)
        counts[move] = len(list(mating_moves(board)))
        board.pop()
    assert counts[defence] == min(counts.values())


def test_the_splits_have_their_sizes_and_share_no_position(domain):
    assert Counter(row.split for row in shipped()) == SIZES
    assert all(len(domain.splits[split]) == SIZES[split] for split in SPLITS)
    assert len({position_key(row.fen) for row in shipped()}) == len(shipped())


def test_shipped_rows_are_what_the_committed_code_generates():
    sample = list(itertools.islice(generate(SEED, SIZES), 25))
    assert sample == list(shipped()[:25])


def test_every_gold_line_scores_and_every_row_is_what_it_says(domain):
    for row in shipped():
        board = chess.Board(row.fen)
        assert board.is_valid() and board.legal_moves.count() in LEGAL
        mates = {m.uci() for m in mating_moves(board)}
        if row.gold.mate_in == 1:
            assert row.gold.line[0] in mates and len(mates) <= MATES
        else:
            assert not mates and row.gold.mate_in == 2 and len(row.gold.line) == 3
    for split in SPLITS:
        for task in domain.splits[split]:
            w = domain.world(task)
            assert w.verdict(w.solve()).score == 1
        kinds = Counter(task.gold.mate_in for task in domain.splits[split])
        assert 0.15 < kinds[2] / len(domain.splits[split]) < 0.25


def test_a_mates_place_in_the_list_gives_little_away(domain):
    places = Counter()
    for split in SPLITS:
        for task in domain.splits[split]:
            legal = [uci for uci, _ in legal_moves(chess.Board(task.shown["fen"]))]
            places[4 * legal.index(task.gold.line[0]) // len(legal)] += 1
    assert max(places.values()) < 0.35 * places.total()


def test_what_is_shown_does_not_hold_the_answer(domain):
    for task in itertools.islice(domain.splits["test"], 50):
        assert set(task.shown) == {"fen", "board", "side"}
        assert task.shown["board"] == str(chess.Board(task.shown["fen"]))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9))
def test_a_positions_key_is_one_for_mirror_image_and_exchanged_colours(seed):
    rng, board = random.Random(seed), chess.Board()
    for _ in range(rng.randrange(60)):
        if not any(board.legal_moves):
            break
        board.push(rng.choice(list(board.legal_moves)))
    key = position_key(board.fen())
    assert position_key(board.mirror().fen()) == key
    board.halfmove_clock += 3
    assert position_key(board.fen()) == key
    if not board.castling_rights:
        assert position_key(board.transform(chess.flip_horizontal).fen()) == key
    else:
        assert position_key(board.transform(chess.flip_horizontal).fen()) != key
    board.turn = not board.turn
    assert position_key(board.fen()) != key or board.mirror().board_fen() == board.board_fen()


def test_ids_tell_kind_and_position():
    ids = [row_id(row) for row in shipped()]
    assert len(set(ids)) == len(ids) and all(i.startswith(("mate1-", "mate2-")) for i in ids)


# the shipped harnesses


def play(domain, task, harness, says):
    env = HarnessEnv(domain, harness=harness, split="test")
    env.reset(seed=0, options={"task": task.id})
    for said in says:
        if env.done:
            break
        env.step(said)
    return env


@pytest.fixture(scope="module")
def one(domain):
    return next(t for t in domain.splits["test"] if t.gold.mate_in == 1)


@pytest.fixture(scope="module")
def two(domain):
    return next(t for t in domain.splits["test"] if t.gold.mate_in == 2)


@pytest.mark.parametrize("harness", ["h0", "strong"])
def test_right_moves_solve_under_both_harnesses(domain, one, two, harness):
    for task in (one, two):
        env = play(domain, task, harness, [f"I see it. <move>{uci}</move>" for uci in task.gold.line[::2]])
        assert env.done and env.episode.score == 1 and env.episode.behaviours["format followed"]


@pytest.mark.parametrize("harness", ["h0", "strong"])
def test_a_legal_wrong_move_is_played_as_it_is(domain, one, harness):
    board = chess.Board(one.shown["fen"])
    wrong = next(m.uci() for m in board.legal_moves if m not in set(mating_moves(board)))
    env = play(domain, one, harness, [f"<move>{wrong}</move>", f"<move>{one.gold.line[0]}</move>"])
    assert env.done and env.episode.score == 0 and len(env.episode.calls) == 1
    assert [call.args for call in env.episode.tool_calls if call.name == "move"] == [[wrong]]


@pytest.mark.parametrize("bad", ["no tag", "<move>", "<move>a1a1</move>"])
def test_h0_takes_one_mistake_of_a_kind_and_not_two(domain, one, bad):
    right = f"<move>{one.gold.line[0]}</move>"
    assert play(domain, one, "h0", [bad, right]).episode.score == 1
    env = play(domain, one, "h0", [bad, bad, right])
    assert env.done and env.episode.score == 0 and len(env.episode.calls) == 2
    assert play(domain, one, "strong", [bad, bad, bad, right]).episode.score == 1


def test_the_strong_harness_reads_what_h0_does_not(domain, one):
    move = one.gold.line[0]
    for said in (f"<move>a1a1</move> no: <move>{move}</move>", f"<move>{move}", f"It is {move}."):
        assert play(domain, one, "strong", [said]).episode.score == 1
        assert play(domain, one, "h0", [said]).episode.score == 0


def test_h0_hides_moves_that_the_strong_harness_shows(domain):
    shown = Counter()
    tasks = domain.splits["test"]
    for task in tasks:
        for harness in ("h0", "strong"):
            prompt = play(domain, task, harness, []).episode.calls
            assert prompt == []
            env = HarnessEnv(domain, harness=harness, split="test")
            messages, _ = env.reset(seed=0, options={"task": task.id})
            shown[harness] += f"\n{task.gold.line[0]} " in messages[-1]["content"]
    assert 0.4 < shown["h0"] / len(tasks) < 0.7
    assert shown["strong"] == len(tasks)


def test_the_strong_harness_keeps_the_boards_order_in_each_group(domain):
    for task in itertools.islice(domain.splits["test"], 40):
        env = HarnessEnv(domain, harness="strong", split="test")
        messages, _ = env.reset(seed=0, options={"task": task.id})
        listed = messages[-1]["content"].split("Legal moves:\n")[1].splitlines()[:-1]
        for named, group in itertools.groupby(listed, key=lambda line: line.endswith(":")):
            if not named:
                moves = [line.split()[0] for line in group]
                assert moves == sorted(moves)


@pytest.mark.parametrize("dataset", ["hub:x", "puzzles", "puzzles.csv", "puzzles.txt", ""])
def test_an_unknown_dataset_is_one_clear_line(dataset):
    with pytest.raises(UserError, match="expected") as error:
        ChessPuzzles(dataset)
    assert "\n" not in str(error.value)
