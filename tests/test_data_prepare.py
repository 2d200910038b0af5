"""Prepared folders: whole or not there, the same tasks as their source, never used when changed; leaks name rows."""

import json
import os
from pathlib import Path

import gymnasium
import msgspec
import pytest
from real_data import REAL, needs_real_data

import whale_envs
from whale_envs import UserError
from whale_envs.data import folder as folder_module
from whale_envs.data.folder import load_splits, read_card
from whale_envs.data.math_files import NOT_INTEGER
from whale_envs.data.prepare import prepare
from whale_envs.data.reader import CONFLICT, DUPLICATE
from whale_envs.task import SPLITS
from whale_envs.tools.retrieval_build import build_index
from whale_train.cli import main

ROWS = [{"problem": f"problem number {i}", "answer": i * i} for i in range(40)]
BAD = [{"problem": "x", "answer": "1/2"}, {"problem": "problem number 3", "answer": 9}, {"problem": "", "answer": 3}]
CLASH = [{"problem": "y", "answer": 1}, {"problem": "Y.", "answer": 2}]


def put(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def source(tmp_path):
    return put(tmp_path / "problems.jsonl", [*ROWS, *BAD, *CLASH])


def hashes(splits):
    return [splits[split].hash for split in SPLITS]


def test_a_prepared_folder_holds_the_tasks_of_its_file_and_a_card_that_adds_up(tmp_path, source):
    card = prepare("math", str(source), tmp_path / "out")
    splits, direct = load_splits("math", tmp_path / "out"), load_splits("math", source)
    assert hashes(splits) == hashes(direct) == [card.splits[s].hash for s in SPLITS]
    assert splits.dropped == direct.dropped == card.dropped and card.dropped[CONFLICT] == 2
    assert sum(part.tasks for part in card.splits.values()) + sum(card.dropped.values()) == card.rows == 45
    assert card == read_card(tmp_path / "out")
    text = (tmp_path / "out" / "README.md").read_text()
    assert all(f"| {reason} | {n:,} |" in text for reason, n in card.dropped.items())
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "README.md", "card.json", "harness.jsonl", "test.jsonl", "weight.jsonl",
    ]  # fmt: skip


def test_gym_make_and_the_commands_take_a_prepared_folder(tmp_path, source, capsys):
    assert main(["data", "prepare", "math", "--source", str(source), "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr()
    assert "45 rows: 20 weight, 10 harness, 10 test" in printed.out and f"2  {CONFLICT}" in printed.out
    assert "reading problems.jsonl" in printed.err
    env = gymnasium.make("whale/Math", dataset=str(tmp_path / "out"), split="test")
    _, info = env.reset(seed=0)
    _, reward, terminated, _, _ = env.step(f"\\boxed{{{env.unwrapped.tasks.by_id(info['task_id']).gold}}}")
    env.close()
    assert (reward, terminated) == (1.0, True)


@pytest.mark.parametrize("domain", ["chess", "search-qa"])
def test_golds_of_every_domain_come_back_as_they_were(tmp_path, domain):
    ranks = ["PPPPP2P", "1PPPP2P", "P1PPP2P", "PP1PP2P", "2PPP2P"]  # another pawn of White's is missing in each
    rows = [
        {
            "question": f"who was king {i}?",
            "answers": [f"King {i}", "him"],
            "PuzzleId": f"p{i}",
            "FEN": f"rnbqkbnr/pppp1ppp/8/4p3/6P1/5P2/{rank}/RNBQKBNR w KQkq - 0 2",
            "Moves": "e2e3 d8h4",
        }
        for i, rank in enumerate(ranks)
    ]
    path = put(tmp_path / "t.jsonl", rows)
    prepare(domain, str(path), tmp_path / "out")
    prepared, direct = load_splits(domain, tmp_path / "out"), load_splits(domain, path)
    assert all(list(prepared[split]) == list(direct[split]) for split in SPLITS)
    assert sum(len(prepared[split]) for split in SPLITS) == 5


def test_the_seed_decides_what_is_drawn_and_nothing_else_does(tmp_path, source):
    one = prepare("math", str(source), tmp_path / "one", seed=1)
    again = prepare("math", str(source), tmp_path / "again", seed=1)
    other = prepare("math", str(source), tmp_path / "other", seed=2)
    assert one.splits == again.splits and one.splits["test"] != other.splits["test"]
    for name in (*SPLITS, "card"):
        file = f"{name}.json" if name == "card" else f"{name}.jsonl"
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "again" / file).read_bytes()


def test_files_whose_names_are_not_in_utf8_are_read(tmp_path, capsys):
    name = tmp_path / os.fsdecode(b"train\xfe.jsonl")
    name.write_text("".join(json.dumps({"problem": f"{i} + 1?", "answer": i + 1}) + "\n" for i in range(8)))
    assert prepare("math", str(tmp_path), tmp_path / "out").sources[0].name == "train\ufffd.jsonl"
    corpus = tmp_path / os.fsdecode(b"c\xfe.jsonl")
    corpus.write_text('{"id": "1", "text": "x"}\n')
    build_index(corpus, tmp_path / "index")
    assert build_index(corpus, tmp_path / "index").passages == 1
    assert main(["data", "prepare", "math", "--source", str(name), "--out", "x"]) == 2
    assert "train\\udcfe.jsonl' is no text in UTF-8: rename the file" in capsys.readouterr().err


def test_files_of_given_splits_keep_to_them(tmp_path):
    put(tmp_path / "in" / "train.jsonl", [*ROWS[:20], *BAD])
    put(tmp_path / "in" / "test-00000-of-00002.jsonl", ROWS[30:33])
    put(tmp_path / "in" / "test-00001-of-00002.jsonl", ROWS[33:40])
    put(tmp_path / "in" / "notes.jsonl", ROWS[:1])
    card = prepare("math", str(tmp_path / "in"), tmp_path / "out")
    splits = load_splits("math", tmp_path / "out")
    assert {t.gold for t in splits["test"]} == {str(row["answer"]) for row in ROWS[30:]}
    assert (len(splits["weight"]), len(splits["harness"])) == (15, 5)
    assert [(s.name, s.rows) for s in card.sources][1] == ("test-00000-of-00002.jsonl, test-00001-of-00002.jsonl", 10)
    assert hashes(load_splits("math", tmp_path / "in")) == hashes(splits)


def test_a_leak_between_given_splits_names_its_rows(tmp_path):
    put(tmp_path / "in" / "train.jsonl", ROWS[:20])
    put(tmp_path / "in" / "dev.jsonl", [*ROWS[20:25], {"problem": "$Problem$ number 7.", "answer": 8}])
    put(tmp_path / "in" / "test.jsonl", [*ROWS[30:33], ROWS[4]])
    with pytest.raises(UserError, match="1 of the test tasks are in weight too") as error:
        prepare("math", str(tmp_path / "in"), tmp_path / "out")
    assert f"{tmp_path}/in/test.jsonl:4 = {tmp_path}/in/train.jsonl:5" in str(error.value)
    put(tmp_path / "in" / "test.jsonl", ROWS[30:33])
    with pytest.raises(UserError, match=r"dev\.jsonl:6 = .*train\.jsonl:8\): take them out of one of the two"):
        load_splits("math", tmp_path / "in")
    assert not (tmp_path / "out").exists()


FRACTIONS = [{"problem": f"half of {i}", "answer": f"{i}/2"} for i in range(1, 40, 2)]


def test_math_verify_has_the_tasks_that_it_can_use_of_a_prepared_folder_too(tmp_path, capsys):
    source = put(tmp_path / "p.jsonl", [*ROWS, *FRACTIONS])
    plain = prepare("math", str(source), tmp_path / "plain")
    assert (plain.verifier, plain.dropped) == ("integer", {NOT_INTEGER: 20})
    command = ["data", "prepare", "math", "--source", str(source), "--verifier", "math-verify", "--out"]
    assert main([*command, str(tmp_path / "all")]) == 0 and "60 rows: 30 weight" in capsys.readouterr().out
    card = read_card(tmp_path / "all")
    assert (card.verifier, card.dropped) == ("math-verify", {})
    assert "For the verifier math-verify." in (tmp_path / "all" / "README.md").read_text()
    domain = whale_envs.load_domain("math", str(tmp_path / "all"), "math-verify")
    assert hashes(domain.splits) == hashes(load_splits("math", source, "math-verify"))
    for verifier in (None, "integer"):
        with pytest.raises(UserError, match="was prepared for --verifier math-verify: give it here too"):
            whale_envs.load_domain("math", str(tmp_path / "all"), verifier)
    assert len(whale_envs.load_domain("math", str(tmp_path / "plain"), "math-verify").splits.test) == 10
    with pytest.raises(UserError, match="holds tasks of another domain, verifier, seed or source"):
        prepare("math", str(source), tmp_path / "all")
    assert prepare("math", str(source), tmp_path / "all", verifier="math-verify") == card


def test_the_same_request_again_leaves_the_folder_and_another_is_refused(tmp_path, source):
    out = tmp_path / "out"
    card = prepare("math", str(source), out)
    before = {p: p.stat().st_mtime_ns for p in out.iterdir()}
    assert prepare("math", str(source), out) == card
    assert {p: p.stat().st_mtime_ns for p in out.iterdir()} == before
    put(source, ROWS)
    for change in ({"seed": 1}, {}):
        with pytest.raises(UserError, match="holds tasks of another domain, verifier, seed or source"):
            prepare("math", str(source), out, **change)


@pytest.mark.parametrize("split", SPLITS)
def test_a_changed_folder_is_not_used(tmp_path, source, split):
    prepare("math", str(source), tmp_path / "out")
    path = tmp_path / "out" / f"{split}.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[1:]))
    with pytest.raises(UserError, match=f"{split}.jsonl is not what .* wrote"):
        load_splits("math", tmp_path / "out")
    with pytest.raises(UserError, match=f"{split}.jsonl is not what .* wrote: remove the folder and prepare"):
        prepare("math", str(source), tmp_path / "out")
    path.write_text("{}\n")
    with pytest.raises(UserError, match=r"jsonl:1 is no task"):
        load_splits("math", tmp_path / "out")


@pytest.mark.parametrize("written", range(5))
def test_a_death_while_writing_leaves_no_folder_and_the_next_run_clears_up(tmp_path, source, monkeypatch, written):
    calls = []

    def dies(path: Path, data: bytes) -> None:
        calls.append(path)
        if len(calls) > written:
            raise KeyboardInterrupt
        path.write_bytes(data)

    monkeypatch.setattr(folder_module, "write_atomic", dies)
    monkeypatch.setattr(folder_module.shutil, "rmtree", lambda *_, **__: None)  # as after SIGKILL: nothing is removed
    with pytest.raises(KeyboardInterrupt):
        prepare("math", str(source), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    monkeypatch.undo()
    (draft,) = tmp_path.glob(".out.*.tmp")
    draft.rename(tmp_path / ".out.999999999.tmp")  # of a process that is no more
    prepare("math", str(source), tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "problems.jsonl"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("maths --source {source} --out new", "did you mean 'math'?"),
        ("math --source nowhere.jsonl --out new", "no file nowhere.jsonl"),
        ("math --source {source} --out {folder}", "is there already and no prepared folder"),
        ("math --source {source} --out {source}", "is there already and no prepared folder"),
        ("math --source {source} --out new --revision Lichess/chess-puzzles=main", "only --source hub has revisions"),
        ("math --source hub --out new --revision Lichess/chess-puzles=main", "did you mean 'Lichess/chess-puzzles'?"),
        ("math --source hub --out new --revision main", "expected REPO=REVISION"),
        ("math --source hub:nowhere --out new", "nowhere holds no Maxwell-Jia/AIME_2024"),
        ("math --source {source} --out new --corpus", "--corpus is the hub's corpus of search-qa"),
        ("chess --source {source} --out new", "has no fen"),
        ("math --out new", "--source"),
        ("math --source {source} --out new --verifier maths-verify", "did you mean 'math-verify'?"),
        ("chess --source {source} --out new --verifier f1", "every verifier of chess takes the same tasks"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, source, monkeypatch, capsys, arguments, says):
    monkeypatch.chdir(tmp_path)
    put(tmp_path / "folder" / "file.jsonl", ROWS)
    argv = arguments.format(source=source, folder=tmp_path / "folder").split()
    assert main(["data", "prepare", *argv]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("whale:")]
    assert len(lines) == 1 and says in lines[0]
    assert not (tmp_path / "new").exists()


def test_a_prepared_folder_is_of_its_domain_and_is_not_prepared_again(tmp_path, source):
    prepare("math", str(source), tmp_path / "out")
    with pytest.raises(UserError, match="holds tasks of math: expected some of chess"):
        load_splits("chess", tmp_path / "out")
    with pytest.raises(UserError, match="is prepared already"):
        prepare("math", str(tmp_path / "out"), tmp_path / "new")
    (tmp_path / "out" / "card.json").write_bytes(msgspec.json.encode({"domain": "math"}))
    with pytest.raises(UserError, match="is malformed"):
        load_splits("math", tmp_path / "out")


@needs_real_data
@pytest.mark.parametrize(
    ("domain", "name", "rows"),
    [
        ("math", "math/dapo_dev_2000.jsonl", 2000),
        ("math", "math/math500.jsonl", 500),
        ("search-qa", "qa/qa_dev_eval.jsonl", 1594),
        ("chess", "chess/lichess_puzzles_1000.csv", 1000),
    ],
)
def test_real_files_are_prepared_and_every_row_is_counted(tmp_path, domain, name, rows):
    card = prepare(domain, str(Path(REAL, name)), tmp_path / "out", seed=3)
    assert card.rows == rows == sum(p.tasks for p in card.splits.values()) + sum(card.dropped.values())
    splits = load_splits(domain, tmp_path / "out")
    assert [splits[s].hash for s in SPLITS] == [card.splits[s].hash for s in SPLITS]
    if name == "math/dapo_dev_2000.jsonl":
        assert card.dropped == {DUPLICATE: 11, CONFLICT: 2}
