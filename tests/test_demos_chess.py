"""The chess demonstrations: fresh positions, legal conversations, mistakes where they are wanted and only there."""

import itertools
import random
import re

import chess
import pytest

from whale_envs.data.chess_lichess import puzzle_task
from whale_envs.data.chess_mini import position_key, shipped
from whale_envs.harness.load import load_harness
from whale_envs.task import SPLITS
from whale_envs.tools.board import legal_moves
from whale_envs.verifiers.chess_line import forcing_moves
from whale_train.tiny.demos_chess import Positions, demos, play


def moves(conversation):
    return [re.findall(r"<move>(\w+)</move>", m["content"]) for m in conversation if m["role"] == "assistant"]


def test_demonstrations_are_the_same_for_the_same_seed():
    one, same, other = (list(itertools.islice(demos(seed, True), 30)) for seed in (1, 1, 2))
    assert one == same != other


def test_no_demonstration_holds_a_shipped_tasks_position():
    kept_apart = {position_key(row.fen) for row in shipped() if row.split in SPLITS}
    starts = list(itertools.islice(demos(3, False), 300))
    fens = [m["content"].splitlines()[0] for c in starts for m in c if m["role"] == "user"]
    fens = [f for f in fens if re.match(r"[\w/]+ [wb] ", f)]
    assert len(fens) > 150
    assert not kept_apart & {position_key(fen) for fen in fens}


def test_positions_are_mates_and_turned_lines_stay_right():
    positions = Positions(random.Random(4))
    for _ in range(60):
        fen, gold = positions.draw()
        board = chess.Board(fen)
        assert board.is_valid()
        right = {m.uci() for m in forcing_moves(board, gold.mate_in)}
        assert right and (not gold.line or gold.line[0] in right)


def test_clean_demonstrations_answer_in_the_format_with_a_move_that_is_shown():
    for conversation in itertools.islice(demos(5, False), 200):
        assert conversation[-1]["role"] == "assistant"
        for at, message in enumerate(conversation):
            if message["role"] == "assistant":
                (move,) = re.findall(r"<move>(\w+)</move>", message["content"])
                assert re.search(rf"\b{move}\b", conversation[at - 1]["content"])


def test_noisy_demonstrations_have_each_kind_of_mistake_and_right_moves_too():
    said = [m for c in itertools.islice(demos(6, True), 500) for m in moves(c)]
    malformed = sum(len(m) != 1 for m in said)
    assert 0.04 < malformed / len(said) < 0.25


@pytest.mark.parametrize(("name", "least"), [("h0", 0.3), ("strong", 0.85)])
def test_a_clean_expert_is_bound_by_what_the_harness_shows(name, least):
    solved = 0
    rows = [row for row in shipped() if row.split == "demo" and row.gold.mate_in == 1][:80]
    for row in rows:
        last = list(
            play(load_harness(name, "chess"), puzzle_task("t", row.fen, row.gold, "t"), random.Random(1), False)
        )[-1]
        mates = {uci for uci, san in legal_moves(chess.Board(row.fen)) if san.endswith("#")}
        solved += set(moves(last)[-1]) <= mates
    assert least <= solved / len(rows) and (name == "strong") == (solved == len(rows))
