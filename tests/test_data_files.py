"""Files of every shape give the same tasks, and each row is a task or counted."""

import csv
import gzip
import io
import itertools
import json
import math
import random
import tarfile
from pathlib import Path

import pyarrow
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from real_data import REAL, needs_real_data

from whale_envs import UserError, load_domain
from whale_envs.data.corpus import read_corpus
from whale_envs.data.files import open_text
from whale_envs.data.folder import load_splits
from whale_envs.data.reader import CONFLICT, DUPLICATE, SAME_ID, reader_of
from whale_envs.data.search_files import NO_ANSWER
from whale_envs.domains.math_code import MathCode
from whale_envs.harness.helpers import ExecResult
from whale_envs.task import SPLITS

FENS = ["8/4R3/1p2P3/p4r2/P6p/1P3Pk1/4K3/8 w - - 1 64", "4r3/1k6/pp3r2/1b2P2p/3R1p2/P1R2P2/1P4PP/6K1 w - - 0 35"]
LINES = ["e7f7 f5e5 e2f1 e5e6", "e5f6 e8e1 g1f2 e1f1"]
ROWS = {
    "math": [{"problem": f"What is {i} + {i}, in other words?", "answer": str(2 * i)} for i in range(3, 30, 2)],
    "search-qa": [{"question": f"who was the king of land {i}?", "answer": f"King {'ABCDEFG'[i]}"} for i in range(7)],
    "chess": [
        {"PuzzleId": "0008Q", "FEN": FENS[0], "Moves": LINES[0]},
        {"PuzzleId": "000Zo", "FEN": FENS[1], "Moves": LINES[1]},
        {
            "PuzzleId": "000Vc",
            "FEN": "8/8/4k1p1/2KpP2p/5PP1/8/8/8 w - - 0 53",
            "Moves": "g4h5 g6h5 f4f5 e6e5 f5f6 e5f6",
        },
    ],
}


def as_csv(rows, header=True):
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    if header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def as_jsonl(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def as_parquet(rows):
    out = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows), out)
    return out.getvalue()


def as_tar(name, data):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        member = tarfile.TarInfo(f"data00/{name}")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def frames(data):
    """Compressed as two frames, one after the other."""
    half = len(data) // 2
    return zstandard.compress(data[:half]) + zstandard.compress(data[half:])


SHAPES = {
    "t.csv": as_csv,
    "t.csv.gz": lambda rows: gzip.compress(as_csv(rows)),
    "t.csv.zst": lambda rows: frames(as_csv(rows)),
    "headless.csv": lambda rows: as_csv(rows, header=False),
    "numbered.csv": lambda rows: as_csv([{"": str(i), **row} for i, row in enumerate(rows)], header=False),
    "upper.CSV": lambda rows: as_csv([{k.upper(): v for k, v in row.items()} for row in rows]),
    "bom.csv": lambda rows: b"\xef\xbb\xbf" + as_csv(rows),
    "t.jsonl": as_jsonl,
    "t.jsonl.gz": lambda rows: gzip.compress(as_jsonl(rows)),
    "t.jsonl.zst": lambda rows: frames(as_jsonl(rows)),
    "named-only.jsonl.gz": as_jsonl,
    "tar.jsonl.gz": lambda rows: gzip.compress(as_tar("t.jsonl", as_jsonl(rows))),
    "tar.jsonl.zst": lambda rows: frames(as_tar("t.jsonl", as_jsonl(rows))),
    "tar.jsonl": lambda rows: as_tar("t.jsonl", as_jsonl(rows)),
    "t.json": lambda rows: json.dumps(rows, indent=1).encode(),
    "inside.json": lambda rows: json.dumps({"version": 1, "data": rows}).encode(),
    "really-jsonl.json": as_jsonl,
    "t.parquet": as_parquet,
}


@pytest.mark.parametrize("domain", ROWS)
@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_gives_the_same_tasks(tmp_path, domain, name):
    rows = ROWS[domain]
    path = tmp_path / name
    path.write_bytes(SHAPES[name](rows))
    plain = tmp_path / "plain.jsonl"
    plain.write_bytes(as_jsonl(rows))
    splits, expected = load_splits(domain, path), load_splits(domain, plain)
    assert splits.dropped == expected.dropped == {}
    assert [splits[s].hash for s in SPLITS] == [expected[s].hash for s in SPLITS]
    assert sum(len(splits[s]) for s in SPLITS) == len(rows)


def mirrored(row):
    """The same puzzle with left and right exchanged, under another id."""
    placement, rest = row["FEN"].split(" ", 1)
    moves = row["Moves"].translate(str.maketrans("abcdefgh", "hgfedcba"))
    return {"PuzzleId": "m" + row["PuzzleId"], "FEN": "/".join(r[::-1] for r in placement.split("/")) + " " + rest} | {
        "Moves": moves
    }


#: Ways to write a row that leave its content what it is.
TYPOGRAPHY = {
    "math": [lambda r: r | {"problem": r["problem"].upper()}, lambda r: r | {"problem": f"${r['problem'][:-1]}$ ."}],
    "search-qa": [
        lambda r: r | {"question": r["question"].title()},
        lambda r: r | {"question": "The " + r["question"], "answer": r["answer"].upper(), "dataset": "other"},
    ],
    "chess": [lambda r: r | {"FEN": r["FEN"].rsplit(" ", 2)[0] + " 0 1", "PuzzleId": "0" + r["PuzzleId"]}, mirrored],
}


@given(data=st.data())
@settings(max_examples=40, deadline=None)
@pytest.mark.parametrize("domain", ROWS)
def test_neither_order_nor_copies_change_the_tasks(tmp_path_factory, domain, data):
    """Copies to the letter change nothing at all; those in other typography may be what is shown, in any order."""
    rows, path = ROWS[domain], tmp_path_factory.mktemp("order") / "t.jsonl"
    forms = st.sampled_from([lambda row: row, *TYPOGRAPHY[domain]])
    copies = data.draw(st.lists(st.builds(lambda form, row: form(row), forms, st.sampled_from(rows)), max_size=8))
    given_rows = [*rows, *copies]
    shuffled = data.draw(st.permutations(given_rows))
    path.write_bytes(as_jsonl(shuffled))
    splits = load_splits(domain, path)
    path.write_bytes(as_jsonl(rows if all(copy in rows for copy in copies) else given_rows))
    expected = load_splits(domain, path)
    assert [splits[s].hash for s in SPLITS] == [expected[s].hash for s in SPLITS]
    assert splits.dropped == ({DUPLICATE: len(copies)} if copies else {})
    assert sum(len(splits[s]) for s in SPLITS) == len(rows)


def test_of_two_puzzles_with_one_id_the_same_is_kept_in_any_order(tmp_path):
    rows = [row | {"PuzzleId": "twice"} for row in ROWS["chess"][:2]] + [ROWS["chess"][2]]
    found = []
    for order in (rows, rows[::-1]):
        path = tmp_path / "p.jsonl"
        path.write_bytes(as_jsonl(order))
        pool = reader_of("chess").pool(reader_of("chess").read(path))
        found.append((pool.tasks, pool.dropped))
    assert found[0] == found[1] and found[0][1] == {SAME_ID: 1}


@pytest.mark.parametrize(
    ("answers", "kept"),
    [
        (["Paris", "paris!"], ["Paris", "paris!"]),
        ([["Paris", "City of Light"], "the city of light"], ["Paris", "the city of light", "City of Light"]),
        (["Paris", "London"], None),
        ([["Paris", "A"], ["A", "B"], ["B", "Paris"]], None),
    ],
)
def test_questions_with_a_common_answer_merge_and_others_conflict(tmp_path, answers, kept):
    rows = [{"question": "Where is it?", "answer": a} for a in answers]
    path = tmp_path / "q.jsonl"
    path.write_bytes(as_jsonl([*rows, *ROWS["search-qa"]]))
    pool = reader_of("search-qa").pool(reader_of("search-qa").read(path))
    golds = {t.shown["question"]: t.gold for t in pool.tasks.values()}.get("Where is it?")
    assert sorted(golds or []) == sorted(kept or [])
    assert pool.dropped == ({CONFLICT: len(rows)} if kept is None else {DUPLICATE: len(rows) - 1})
    assert len(pool.tasks) + pool.dropped.total() == pool.rows == len(rows) + 7


@pytest.mark.parametrize(
    "cell",
    [
        "x",
        ["x"],
        {"target": ["x"]},
        {"ground_truth": {"target": ["x"]}, "style": "rule"},
        {"text": ["x", "x"], "answer_start": ["1", "2"]},
        {"value": "x", "aliases": ["x"], "type": "WikipediaEntity"},
        '["x"]',
        "['x']",
    ],
)
@pytest.mark.parametrize("column", ["answer", "answers", "golden_answers", "possible_answers", "reward_model"])
def test_answers_are_found_however_they_are_written(tmp_path, column, cell):
    path = tmp_path / "q.jsonl"
    path.write_bytes(as_jsonl([{"question": "Q?", column: cell}]))
    pool = reader_of("search-qa").pool(reader_of("search-qa").read(path))
    assert [task.gold for task in pool.tasks.values()] == [["x"]]


def test_a_gold_that_is_nothing_after_normalisation_is_dropped_alone(tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_bytes(as_jsonl([{"question": "a1?", "answers": ["*", "x"]}, {"question": "b1?", "answers": ["---"]}]))
    pool = reader_of("search-qa").pool(reader_of("search-qa").read(path))
    assert [task.gold for task in pool.tasks.values()] == [["x"]] and pool.dropped == {NO_ANSWER: 1}


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("t.txt", b"x", "of no known kind"),
        ("t.csv", b"", "is empty"),
        ("t.csv", b"1,2\n3,4\n", "give it a first line with the names problem, answer"),
        ("t.csv", b"problem,level\nx,1\n", "has no column answer or .*; it has problem, level"),
        ("t.csv.zst", b"\x28\xb5\x2f\xfdxxxxxxxxx", "cannot read"),
        ("t.csv.gz", gzip.compress(b"problem,answer\n" * 1000)[:-20], "cannot read"),
        ("t.csv.zst", zstandard.compress(b"problem,answer\n" * 1000)[:-3], "cannot read .* it was cut off"),
        ("t.csv.gz", gzip.compress(b"", mtime=0)[:10] + b"\xff" * 30, "cannot read .* decompressing"),
        ("t.parquet", b"PAR1", "cannot read"),
        ("t.parquet", as_parquet([{"problem": "x"}]), "has no column answer"),
        ("t.json", b"[1, 2]", "t.json:1 is a JSON str"),
        ("t.json", b"7", "holds a JSON str"),
        ("t.json", b"", "holds no row"),
        ("t.csv", b"problem,answer\r\n", "holds no row"),
        (
            "t.csv",
            "problem,answer\nprix en é,1\n".encode("latin-1"),
            "it is no text in UTF-8; expected .* saved as UTF-8",
        ),
        (
            "t.csv",
            b'problem,answer\na,1\n"b,2\nc,3\n',
            r"cannot read the row of .*t.csv:3 .*: are all quotes in it closed",
        ),
        ("t.csv", b'problem,answer\n"a\nb",1\n"c"d,2\n', r"cannot read the row of .*t.csv:4 "),
        ("t.jsonl.gz", gzip.compress(as_tar("t.jsonl", b'{"problem": 1')), ":1 is no JSON"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line_that_names_it(tmp_path, name, content, says):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UserError, match=says) as error:
        load_splits("math", path)
    assert "\n" not in str(error.value) and name in str(error.value)


@pytest.mark.parametrize(
    ("domain", "name", "content", "says"),
    [
        (
            "search-qa",
            "t.jsonl",
            b'{"question": "Q?", "answer": ' + b"[" * 900 + b"]" * 900 + b"}",
            "is nested too deeply",
        ),
        ("search-qa", "t.parquet", as_parquet([{"question": "Q?", "answer": b"x"}]), "the answer is a bytes: expected"),
        ("chess", "t.jsonl", as_jsonl([{"FEN": FENS[0], "Moves": True}]), "the moves is a bool: expected moves in UCI"),
        ("chess", "t.parquet", as_parquet([{"FEN": FENS[0], "Moves": 3}]), "the moves is a int: expected moves in UCI"),
    ],
)
def test_a_cell_of_another_type_is_one_line_that_names_its_row(tmp_path, domain, name, content, says):
    (path := tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=f"{name}:1.* {says}"):
        load_splits(domain, path)


def test_a_date_beyond_pythons_is_one_line(tmp_path):
    dates = pyarrow.array([10**15], pyarrow.timestamp("ms"))
    parquet.write_table(pyarrow.table({"question": ["When?"], "answer": dates}), tmp_path / "t.parquet")
    with pytest.raises(UserError, match=r"cannot read .*t.parquet: date value out of range"):
        load_splits("search-qa", tmp_path / "t.parquet")


@pytest.mark.parametrize("name", ["t.jsonl", "t.json", "t.parquet"])
@pytest.mark.parametrize("domain", ["math", "search-qa"])
def test_nan_is_no_answer(tmp_path, domain, name):
    question, answer = ROWS[domain][0]
    rows = [{question: f"What is half of {i}?", answer: i / 2} for i in range(7)]
    (path := tmp_path / name).write_bytes(SHAPES[name]([*rows, {question: "What is half of it?", answer: math.nan}]))
    reader = reader_of(domain, "math-verify" if domain == "math" else "")
    pool = reader.pool(reader.read(path))
    assert len(pool.tasks) == len(rows) and sum(pool.dropped.values()) == 1


@pytest.mark.parametrize("name", ["t.parquet", "t.jsonl"])
def test_a_year_in_a_column_of_fractions_is_the_year(tmp_path, name):
    rows = [{"question": f"When was {i}?", "answer": year} for i, year in enumerate([1984.0, 2.5])]
    (path := tmp_path / name).write_bytes(SHAPES[name](rows))
    reader = reader_of("search-qa", "")
    assert [task.gold for task in reader.pool(reader.read(path)).tasks.values()] == [["1984"], ["2.5"]]


@given(parts=st.lists(st.text("ab\n", max_size=40), min_size=1, max_size=8), data=st.data())
def test_a_cut_within_a_frame_of_zstandard_is_never_taken_for_the_end(tmp_path_factory, parts, data):
    frames = [zstandard.compress(part.encode()) for part in parts]
    path = tmp_path_factory.mktemp("cut") / "t.zst"
    cut = data.draw(st.integers(4, sum(map(len, frames))))
    path.write_bytes(b"".join(frames)[:cut])
    ends = list(itertools.accumulate(map(len, frames)))
    try:
        with open_text(path) as lines:
            assert lines.read() == "".join(parts[: ends.index(cut) + 1])
    except EOFError:
        assert cut not in ends


def test_a_corpus_in_a_tar_archive_named_jsonl_gz_is_read(tmp_path):
    path = tmp_path / "wiki-18.jsonl.gz"
    passages = [{"id": str(i), "contents": f'"Title {i}"\nText {i}'} for i in range(2000)]
    path.write_bytes(gzip.compress(as_tar("wiki_dump.jsonl", as_jsonl(passages))))
    read = list(read_corpus(path))
    assert len(read) == 2000 and (read[-1].title, read[-1].text) == ("Title 1999", "Text 1999")


def prints(code, session):
    """In the sandbox's place: `print('...')` of a literal."""
    return ExecResult(code.removeprefix("print('").removesuffix("')") + "\n", "", "ok")


@pytest.mark.parametrize("domain", ROWS)
@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.CSV.GZ"])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_what_stands_between_cells_and_lines_changes_no_task(tmp_path, domain, name, separator, end):
    rows = [row | {"note": 'a; b, "c"\td\n\ne'} for row in ROWS[domain]]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), delimiter=separator, lineterminator=end, quoting=csv.QUOTE_ALL)
    writer.writeheader()
    writer.writerows(rows)
    content = b"\xef\xbb\xbf" + text.getvalue().encode()
    (path := tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("GZ") else content)
    (plain := tmp_path / "t.jsonl").write_bytes(as_jsonl(ROWS[domain]))
    assert tasks_of(domain, path) == tasks_of(domain, plain)


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.json", "t.parquet"])
@pytest.mark.parametrize(
    "domain, column", [("math", 0), ("math", 1), ("search-qa", 0), ("search-qa", 1), ("chess", 1), ("chess", 2)]
)
@pytest.mark.parametrize("empty", ["", "  ", None])
def test_a_row_with_an_empty_cell_is_dropped_alone(tmp_path, domain, name, column, empty):
    rows = ROWS[domain]
    (plain := tmp_path / "plain.jsonl").write_bytes(as_jsonl(rows))
    broken = rows[0] | {list(rows[0])[column]: empty} | ({"PuzzleId": "x"} if domain == "chess" else {})
    (path := tmp_path / name).write_bytes(SHAPES[name]([*rows, broken]))
    (tasks, dropped), (expected, _) = tasks_of(domain, path), tasks_of(domain, plain)
    assert tasks == expected and sum(dropped.values()) == 1


def tasks_of(domain, path):
    splits = load_splits(domain, path)
    return [list(splits[split]) for split in SPLITS], splits.dropped


@needs_real_data
@pytest.mark.parametrize("ending", ["csv.zst", "csv.gz", "parquet", "json", "csv"])
def test_real_problems_are_the_same_in_every_shape(tmp_path, ending):
    source = Path(REAL, "math", "dapo_dev_2000.jsonl")
    rows = [json.loads(line) for line in source.read_text().splitlines()]
    write = {"csv.zst": lambda r: frames(as_csv(r)), "csv.gz": lambda r: gzip.compress(as_csv(r)), "csv": as_csv}
    write |= {"parquet": as_parquet, "json": lambda r: json.dumps(r).encode()}
    path = tmp_path / f"dapo.{ending}"
    path.write_bytes(write[ending]([{"problem": r["problem"], "answer": r["answer"]} for r in rows]))
    expected, domain = load_splits("math", source), MathCode(str(path), prints)
    assert [domain.splits[s].hash for s in SPLITS] == [expected[s].hash for s in SPLITS]
    assert domain.splits.dropped == expected.dropped


@needs_real_data
def test_real_puzzles_are_the_same_without_a_header_and_with_a_column_in_front(tmp_path):
    lines = Path(REAL, "chess", "lichess_puzzles_1000.csv").read_text().splitlines()[:300]
    plain = tmp_path / "plain.csv"
    plain.write_text("\n".join(lines))
    rows = list(csv.reader(lines))
    path = tmp_path / "headless.csv.zst"
    text = io.StringIO()
    csv.writer(text).writerows([str(i), *row] for i, row in enumerate(rows[1:]))
    path.write_bytes(frames(text.getvalue().encode()))
    splits, expected = load_splits("chess", path), load_splits("chess", plain)
    assert [splits[s].hash for s in SPLITS] == [expected[s].hash for s in SPLITS]


@needs_real_data
def test_real_questions_without_a_header_keep_their_answers(tmp_path):
    rows = [json.loads(line) for line in Path(REAL, "qa", "qa_dev_eval.jsonl").read_text().splitlines()]
    random.Random(0).shuffle(rows)
    path = tmp_path / "q.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows((r["question"], json.dumps(r["answers"])) for r in rows[:300])
    splits = load_splits("search-qa", path)
    golds = {t.shown["question"]: t.gold for s in SPLITS for t in splits[s]}
    for row in rows[:300]:
        answers = {answer.strip() for answer in row["answers"]}
        assert set(golds.get(row["question"].strip(), answers)) <= answers
    assert len(golds) + sum(splits.dropped.values()) == 300


@needs_real_data
@pytest.mark.parametrize("name", ["hotpotqa_train", "musique_train"])  # the big one: tests/test_search_qa.py
def test_every_gold_of_real_questions_scores_1_and_every_row_is_counted(name):
    path = Path(REAL, "qa", f"{name}.jsonl")
    splits, world_of = load_splits("search-qa", path), load_domain("search-qa").world
    tasks = [task for split in SPLITS for task in splits[split]]
    assert len(tasks) + sum(splits.dropped.values()) == len(path.read_text().splitlines())
    for task in tasks:
        assert all(world_of(task).verdict(gold).score == 1 for gold in task.gold)
