"""Lichess files: the shapes that people have, and what becomes of rows that cannot be played."""

import csv
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from real_data import REAL, needs_real_data

from whale_envs import UserError
from whale_envs.data.chess_lichess import PuzzleReader
from whale_envs.data.chess_mini import position_key
from whale_envs.data.reader import CONFLICT, DUPLICATE, EMPTY_LINE, SAME_ID, SHORT_ROW
from whale_envs.domains.chess_puzzles import ChessPuzzles
from whale_envs.task import SPLITS
from whale_envs.verifiers.chess_line import verify_line

FILES = {"lichess_puzzles_1000.csv": 1000, "lichess_puzzles_all_themes.csv": 5817, "lichess_mates_12008.csv": 12008}

HEADER = "PuzzleId,FEN,Moves,Rating,RatingDeviation,Popularity,NbPlays,Themes,GameUrl,OpeningTags"
ROWS = [
    "00008,r6k/pp2r2p/4Rp1Q/3p4/8/1N1P2R1/PqP2bPP/7K b - - 0 24,f2g3 e6e7 b2b1 b3c1 b1c1 h6c1,1807,75,94,5852,long,https://x,",
    "0008Q,8/4R3/1p2P3/p4r2/P6p/1P3Pk1/4K3/8 w - - 1 64,e7f7 f5e5 e2f1 e5e6,1375,74,90,518,short,https://x,",
    "000Zo,4r3/1k6/pp3r2/1b2P2p/3R1p2/P1R2P2/1P4PP/6K1 w - - 0 35,e5f6 e8e1 g1f2 e1f1,1409,74,93,530,mate,https://x,",
    "000Vc,8/8/4k1p1/2KpP2p/5PP1/8/8/8 w - - 0 53,g4h5 g6h5 f4f5 e6e5 f5f6 e5f6,1556,81,73,90,long,https://x,",
]


def put(folder, *lines, name="puzzles.csv"):
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


def read_lichess(path):
    pool = PuzzleReader().pool(PuzzleReader().read(path))
    return list(pool.tasks.values()), dict(pool.dropped)


def cells(row):
    return row.split(",")


SHAPES = {
    "as published": [HEADER, *ROWS],
    "9 columns, no header": [",".join(cells(r)[:9]) for r in ROWS],
    "a column in front": [f",{HEADER}", *(f"{i},{r}" for i, r in enumerate(ROWS))],
    "a column in front, no header": [f"{i},{r}" for i, r in enumerate(ROWS)],
    "a column behind": [f"{HEADER},Split", *(f"{r},train" for r in ROWS)],
    "NbPlays as a float": [HEADER, *(",".join([*cells(r)[:6], "6608.0", *cells(r)[7:]]) for r in ROWS)],
    "commas in quoted tags": [HEADER, *(f'{r}"Kings_Pawn,Sicilian"' for r in ROWS)],
    "commas in bare tags": [HEADER, *(f"{r}Kings_Pawn,Sicilian,Italian" for r in ROWS)],
    "a byte order mark": [f"\ufeff{HEADER}", *ROWS],
    "other columns and order": [
        "Moves,Rating,FEN,PuzzleId",
        *(",".join(cells(r)[i] for i in (2, 3, 1, 0)) for r in ROWS),
    ],
    "lower case": [HEADER.lower(), *ROWS],
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_gives_the_same_puzzles(tmp_path, shape):
    puzzles, dropped = read_lichess(put(tmp_path, *SHAPES[shape]))
    assert dropped == {}
    assert puzzles == read_lichess(put(tmp_path, HEADER, *ROWS, name="plain.csv"))[0]
    assert [p.id for p in puzzles] == [cells(r)[0] for r in ROWS]


def test_the_fen_is_before_the_opponents_move(tmp_path):
    puzzle = read_lichess(put(tmp_path, HEADER, *ROWS))[0][1]
    assert puzzle.shown["fen"].startswith("8/5R2/1p2P3/p4r2/") and puzzle.shown["side"] == "black"
    assert puzzle.gold.line == ["f5e5", "e2f1", "e5e6"]


FEN = "4r3/1k6/pp3r2/1b2P2p/3R1p2/P1R2P2/1P4PP/6K1 w - - 0 35"
BAD = {
    "FEN cannot be read": "x1,not a fen,e2e4 e7e5",
    "position is not legal": "x1,8/8/8/8/8/8/8/8 w - - 0 1,e2e4 e7e5",
    "no move for the solver": f"x1,{FEN},e5f6",
    "line ends with the opponent's move": f"x1,{FEN},e5f6 e8e1 g1f2",
    "line holds an illegal move": f"x1,{FEN},e5f6 e8a1",
    "more than 17 plies": f"x1,{FEN},{' '.join(['e5f6'] * 20)}",
    SHORT_ROW: "x1",
    EMPTY_LINE: "",
    SAME_ID: ROWS[0].replace("3p4/8/1N1P2R1", "3p4/7P/1N1P2R1"),
    DUPLICATE: ROWS[0].replace("00008", "other").replace(" 24,", " 25,"),
}


@pytest.mark.parametrize("reason", BAD)
def test_a_dropped_row_is_counted_with_its_reason(tmp_path, reason):
    puzzles, dropped = read_lichess(put(tmp_path, HEADER, *ROWS, BAD[reason]))
    assert len(puzzles) == len(ROWS) and dropped == {reason: 1}


def test_rows_of_one_position_merge_when_their_lines_agree_and_are_all_dropped_when_not(tmp_path):
    longer = ROWS[1].replace("0008Q", "long").replace("e5e6", "e5e6 f1g1 e6e1")
    other = ROWS[1].replace("0008Q", "other").replace("f5e5 e2f1 e5e6", "f5f7")
    puzzles, dropped = read_lichess(put(tmp_path, HEADER, *ROWS, longer))
    assert {p.id for p in puzzles} >= {"long"} and len(puzzles) == 4 and dropped == {DUPLICATE: 1}
    puzzles, dropped = read_lichess(put(tmp_path, HEADER, *ROWS, other, ROWS[1]))
    assert "0008Q" not in {p.id for p in puzzles} and len(puzzles) == 3 and dropped == {CONFLICT: 3}


def test_a_line_that_goes_on_after_mate_or_passes_is_dropped(tmp_path):
    fool = "rnbqkbnr/pppp1ppp/8/4p3/8/5P2/PPPPP1PP/RNBQKBNR w KQkq - 0 2"
    puzzles, dropped = read_lichess(
        put(tmp_path, HEADER, *ROWS, f"a,{fool},g2g4 d8h4 e1f2 h4f2", f"b,{fool},g2g4 0000", f"c,{fool},g2g4 d8h4")
    )
    assert dropped == {"line holds an illegal move": 2} and puzzles[-1].id == "c"


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([""], "is empty"),
        (["a,b,c", "1,2,3"], "has no header"),
        ([HEADER], "holds no row"),
        (["FEN,Rating"], "has no column moves"),
        ([HEADER, "x1,not a fen,e2e4 e7e5"], "1 x FEN cannot be read"),
        ([HEADER, ROWS[0]], "keeps 1 rows"),
    ],
)
def test_a_file_without_puzzles_is_one_clear_line(tmp_path, lines, says):
    with pytest.raises(UserError, match=says) as error:
        ChessPuzzles(str(put(tmp_path, *lines)))
    assert "\n" not in str(error.value) and "puzzles.csv" in str(error.value)


def test_a_missing_or_unreadable_file_is_one_clear_line(tmp_path):
    binary = tmp_path / "binary.csv"
    binary.write_bytes(bytes(range(256)) * 10)
    for path, says in (("missing.csv", "no file"), ("", "holds no file"), ("binary.csv", "cannot read")):
        with pytest.raises(UserError, match=says) as error:
            ChessPuzzles(str(tmp_path / path))
        assert "\n" not in str(error.value)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.lists(st.text(max_size=30), max_size=6), max_size=5))
def test_whatever_rows_hold_every_one_is_kept_or_counted(tmp_path_factory, junk):
    path = tmp_path_factory.mktemp("junk") / "puzzles.csv"
    with path.open("w", newline="", encoding="utf-8", errors="replace") as file:
        file.write(HEADER + "\n")
        writer = csv.writer(file)
        writer.writerows([*(cells(r) for r in ROWS), *junk])
    try:
        puzzles, dropped = read_lichess(path)
    except UserError as error:  # a NUL in the file, say
        assert "cannot read" in str(error)
        return
    assert len(puzzles) + sum(dropped.values()) == len(ROWS) + len(junk)


def test_splits_do_not_depend_on_the_files_order(tmp_path):
    one = ChessPuzzles(str(put(tmp_path, HEADER, *ROWS))).splits
    other = ChessPuzzles(str(put(tmp_path, HEADER, *reversed(ROWS), name="r.csv"))).splits
    assert all(one[s].hash == other[s].hash for s in SPLITS)


@needs_real_data
@pytest.mark.parametrize("name", FILES)
def test_on_real_files_every_row_is_kept_or_counted_and_every_gold_line_scores(name):
    began = time.process_time()
    domain = ChessPuzzles(str(Path(REAL, "chess", name)))
    assert time.process_time() - began < 25  # seconds of this process; about 4 on an idle core for 12,008 rows
    kept = [task for split in SPLITS for task in domain.splits[split]]
    assert len(kept) + sum(domain.splits.dropped.values()) == FILES[name]
    assert len({position_key(task.shown["fen"]) for task in kept}) == len(kept)
    assert all(verify_line(task.gold.line[::2], task.shown["fen"], task.gold).score == 1 for task in kept)
    for task in kept[:100]:  # and through the tools, which also write out the legal moves
        world = domain.world(task)
        assert world.verdict(world.solve()).score == 1
