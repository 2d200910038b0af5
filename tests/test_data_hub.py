"""The hub's sets: read through `datasets` from folders laid out as the hub's repositories, and drawn as in the paper.

What needs the hub itself is marked `hub`.
"""

import csv
import gzip
import hashlib
import json
import re
from pathlib import Path

import chess
import pyarrow
import pytest
from pyarrow import parquet
from real_data import REAL, needs_real_data

from whale_envs import UserError
from whale_envs.data import recipes
from whale_envs.data.chess_mini import position_key, shipped
from whale_envs.data.folder import load_splits
from whale_envs.data.hub import AIME, DAPO, FLASHRAG, LICHESS, NQ_HOTPOTQA, SETS, WIKI_18, Hub
from whale_envs.data.math_files import content_key
from whale_envs.data.prepare import prepare
from whale_envs.data.reader import CONFLICT, DUPLICATE, reader_of
from whale_envs.data.recipes import IN_TEST, MAX_PLIES, SIZES, random_order
from whale_envs.data.splits import NOT_DRAWN
from whale_envs.task import SPLITS
from whale_envs.verifiers.chess_line import verify_line
from whale_envs.verifiers.exact_match import exact_match, normalise

WRAPPED = (
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n{}\n\n"
    'Remember to put your answer on its own line after "Answer:".'
)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """What `datasets` caches goes away with the test."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


def put_parquet(mirror, repo, name, rows, card=None):
    path = mirror / repo / name
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    if card:
        (mirror / repo / "README.md").write_text(card)


def put_dapo(mirror, rows):
    """As the hub's: every problem a hundred times there, twice here, in its wrapper."""
    put_parquet(
        mirror,
        DAPO.repo,
        DAPO.files,
        [
            {
                "data_source": "math_dapo",
                "prompt": [{"content": WRAPPED.format(row["problem"]), "role": "user"}],
                "ability": "MATH",
                "reward_model": {"ground_truth": row["answer"], "style": "rule-lighteval/MATH_v2"},
                "extra_info": {"index": f"{i}"},
            }
            for i, row in enumerate(rows * 2)
        ],
        "---\nlicense: apache-2.0\n---\n# DAPO\n",
    )


def put_aime(mirror, first, second):
    rows = [
        {"ID": f"2024-{i}", "Problem": row["problem"], "Solution": "long", "Answer": int(row["answer"])}
        for i, row in enumerate(first)
    ]
    put_parquet(mirror, AIME[0].repo, AIME[0].files, rows, "---\nlicense: mit\n---\n")
    rows = [
        {"id": str(i), "problem": row["problem"], "answer": f"0{row['answer']}", "solution": "long"}
        for i, row in enumerate(second)
    ]
    put_parquet(mirror, AIME[1].repo, "data/train-00000-of-00001-243207c6c994e1bd.parquet", rows)


def put_questions(mirror, train, tests):
    """`tests` by the set's name; as the hub's, rows of one file differ in what their metadata holds."""
    put_parquet(
        mirror,
        NQ_HOTPOTQA.repo,
        NQ_HOTPOTQA.files,
        [
            {
                "id": f"train_{i}",
                "question": question,
                "golden_answers": answers,
                "data_source": source,
                "prompt": [{"content": f"Answer: {question}", "role": "user"}],
                "reward_model": {"ground_truth": {"target": answers}, "style": "rule"},
                "metadata": None if source == "nq" else {"type": "bridge"},
            }
            for i, (question, answers, source) in enumerate(train)
        ],
    )
    for part in FLASHRAG:
        path = mirror / part.repo / part.files
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [
            {"id": f"test_{i}", "question": q, "golden_answers": a} | ({"metadata": {"hops": i}} if i % 2 else {})
            for i, (q, a) in enumerate(tests[part.label])
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (mirror / FLASHRAG[0].repo / "README.md").write_text("---\nlicense: cc-by-sa-4.0\nlanguage:\n- en\n---\n")


def put_puzzles(mirror, rows):
    third = len(rows) // 3 + 1
    for i in range(3):  # three files, as on the hub
        put_parquet(mirror, LICHESS.repo, f"data/train-0000{i}-of-00003.parquet", rows[i * third : (i + 1) * third])
    (mirror / LICHESS.repo / "README.md").write_text("---\nlicense: cc0-1.0\n---\n")


def mini_puzzles(count):
    """Rows as Lichess has them, from the bundled mates: an opponent's king move leads to each position."""
    rows = []
    for row in shipped():
        board = chess.Board(row.fen)
        board.turn = not board.turn
        king = board.king(board.turn)
        for square in chess.SquareSet(chess.BB_KING_ATTACKS[king]):
            before = board.copy()
            before.remove_piece_at(king)
            if before.piece_at(square) is None:
                before.set_piece_at(square, chess.Piece(chess.KING, board.turn))
                move = chess.Move(square, king)
                if before.is_valid() and move in before.legal_moves:
                    line = " ".join([move.uci(), *row.gold.line])
                    rows.append({"PuzzleId": f"p{len(rows)}", "GameId": "x", "FEN": before.fen(), "Moves": line})
                    break
        if len(rows) == count:
            return rows
    raise AssertionError(f"only {len(rows)} positions")


def adds_up(card, splits):
    assert sum(p.tasks for p in card.splits.values()) + sum(card.dropped.values()) == card.rows
    assert card.rows == sum(source.rows for source in card.sources)
    assert [splits[s].hash for s in SPLITS] == [card.splits[s].hash for s in SPLITS]


def test_the_paper_s_sizes_and_pinned_commits():
    assert SIZES["search-qa"] == {"weight": 18_946, "harness": 256, "test": 700}
    assert SIZES["math"] == {"weight": 17_917, "harness": 256, "test": 60}
    assert SIZES["chess"] == {"weight": 16_384, "harness": 256, "test": 256}
    assert {s.repo for sets in SETS.values() for s in sets} | {WIKI_18.repo} == {
        "RUC-NLPIR/FlashRAG_datasets",
        "PeterJinGo/nq_hotpotqa_train",
        "PeterJinGo/wiki-18-corpus",
        "BytedTsinghua-SIA/DAPO-Math-17k",
        "Maxwell-Jia/AIME_2024",
        "yentinglin/aime_2025",
        "Lichess/chess-puzzles",
    }
    assert all(re.fullmatch("[0-9a-f]{40}", s.revision) for sets in (*SETS.values(), (WIKI_18,)) for s in sets)


def test_a_mirrors_files_are_read_for_their_hash_once(tmp_path, monkeypatch):
    rows = [{"problem": f"What is {i} in decimal?", "answer": str(i)} for i in range(700)]
    put_dapo(tmp_path / "hub", rows)
    put_aime(tmp_path / "hub", rows[:30], rows[30:60])
    hashed, digest = [], hashlib.file_digest
    monkeypatch.setattr(
        "whale_envs.data.hub.hashlib.file_digest", lambda file, name: hashed.append(file.name) or digest(file, name)
    )
    prepare("math", f"hub:{tmp_path / 'hub'}", tmp_path / "out")
    assert len(hashed) == len(set(hashed)) == 3
    prepare("math", f"hub:{tmp_path / 'hub'}", tmp_path / "out")  # is it still what is asked for?
    assert len(hashed) == 6


def test_math_is_drawn_from_copies_of_the_hubs_repositories(tmp_path):
    rows = [{"problem": f"What is {i} in decimal?", "answer": str(i)} for i in range(700)]
    exam = [{"problem": f"Exam problem {i}", "answer": str(i)} for i in range(60)]
    clash = [{"problem": "Twice", "answer": "1"}, {"problem": "twice", "answer": "2"}]
    put_dapo(tmp_path / "hub", [*rows, exam[7], *clash])
    put_aime(tmp_path / "hub", exam[:30], exam[30:])
    card = prepare("math", f"hub:{tmp_path / 'hub'}", tmp_path / "out", seed=4)
    splits = load_splits("math", tmp_path / "out")
    adds_up(card, splits)
    assert card.dropped == {DUPLICATE: 701, CONFLICT: 4, IN_TEST: 1}
    assert [len(splits[s]) for s in SPLITS] == [700 - 256, 256, 60]
    assert "D_weight holds 444 tasks, not the paper's 17,917" in card.recipe
    assert card.recipe in (tmp_path / "out" / "README.md").read_text()
    assert {t.shown["question"] for t in splits["test"]} == {e["problem"] for e in exam}
    assert {t.source for t in splits["test"]} == {"aime2024", "aime2025"}
    assert {t.source for t in splits["weight"]} == {"math_dapo"}
    assert [s.licence for s in card.sources] == ["apache-2.0", "mit", "not stated"]
    again = prepare("math", f"hub:{tmp_path / 'hub'}", tmp_path / "out", seed=4)
    assert again == card
    other = prepare("math", f"hub:{tmp_path / 'hub'}", tmp_path / "other", seed=5)
    assert other.splits["harness"] != card.splits["harness"]


def test_search_qa_takes_a_hundred_of_each_test_set_and_leaks_none(tmp_path):
    tests = {part.label: [(f"{part.label} question {i}", [f"x{i}"]) for i in range(110)] for part in FLASHRAG}
    tests["popqa"][:10] = tests["nq"][:10]  # the same questions in two sets
    train = [(f"train question {i}?", [f"y{i}", "*"], ("nq", "hotpotqa")[i % 2]) for i in range(300)]
    train += [(f"{q}?", a, "nq") for q, a in tests["bamboogle"]]
    put_questions(tmp_path / "hub", train, tests)
    card = prepare("search-qa", f"hub:{tmp_path / 'hub'}", tmp_path / "out")
    splits = load_splits("search-qa", tmp_path / "out")
    adds_up(card, splits)
    assert len(splits["harness"]) == 256 and len(splits["test"]) == 700
    assert all(sum(t.source == part.label for t in splits["test"]) == 100 for part in FLASHRAG)
    contents = {split: {normalise(t.shown["question"]) for t in splits[split]} for split in SPLITS}
    assert len(set.union(*contents.values())) == sum(map(len, contents.values()))
    assert card.dropped[IN_TEST] >= 100 and card.dropped[NOT_DRAWN] >= 60
    assert splits["weight"][0].gold in [[f"y{i}"] for i in range(300)] + [[f"x{i}"] for i in range(110)]
    assert {t.source for t in splits["weight"]} == {"nq", "hotpotqa"}


def test_chess_looks_at_no_more_puzzles_than_it_needs(tmp_path, monkeypatch):
    monkeypatch.setitem(recipes.SIZES, "chess", {"weight": 40, "harness": 10, "test": 10})
    rows = mini_puzzles(300)
    long = "f2f3 e7e5 g2g4 d7d6 a2a3 a7a6 b2b3 b7b6 c2c3 c7c6 h2h3 h7h6"
    rows[::3] = [{**row, "FEN": chess.STARTING_FEN, "Moves": long} for row in rows[::3]]
    put_puzzles(tmp_path / "hub", rows)
    asked = []

    def watch(what, total):
        asked.append((what, total))
        return lambda read: None

    card = prepare("chess", f"hub:{tmp_path / 'hub'}", tmp_path / "out", 1, watch=watch)
    splits = load_splits("chess", tmp_path / "out")
    adds_up(card, splits)
    assert [len(splits[s]) for s in SPLITS] == [40, 10, 10] and card.rows == 300
    assert "D_weight" not in card.recipe  # it has as many as it should
    assert [total for _, total in asked] == [63, 126]  # a third is too long: not enough at first
    assert card.dropped[f"more than {MAX_PLIES} plies"] > 20
    tasks = [t for s in SPLITS for t in splits[s]]
    assert len({position_key(t.shown["fen"]) for t in tasks}) == 60
    assert all(verify_line(t.gold.line[::2], t.shown["fen"], t.gold).score == 1 for t in tasks)


@pytest.mark.parametrize("n", [1, 7, 100])
def test_a_random_order_has_every_number_once_and_follows_the_seed(n):
    assert sorted(random_order(n, 3)) == list(range(n))
    assert list(random_order(n, 3)) == list(random_order(n, 3))
    assert n < 7 or list(random_order(n, 3)) != list(random_order(n, 4))


def test_a_set_that_is_only_there_in_part_is_an_error_and_nothing_is_written(tmp_path):
    rows = [{"problem": f"What is {i} in decimal?", "answer": str(i)} for i in range(300)]
    put_dapo(tmp_path / "hub", rows)
    put_aime(tmp_path / "hub", rows[:30], [{"problem": f"e{i}", "answer": "1"} for i in range(29)])
    with pytest.raises(UserError, match=r"yentinglin/aime_2025.* keeps 29 rows: expected 30 or more"):
        prepare("math", f"hub:{tmp_path / 'hub'}", tmp_path / "out")
    put_parquet(tmp_path / "hub", AIME[0].repo, AIME[0].files, [{"Problem": "x", "Level": 3}])
    with pytest.raises(UserError, match="cannot load Maxwell-Jia/AIME_2024"):
        prepare("math", f"hub:{tmp_path / 'hub'}", tmp_path / "out")
    (tmp_path / "hub" / AIME[0].repo / AIME[0].files).write_bytes(b"PAR1 torn")
    with pytest.raises(UserError, match="cannot load Maxwell-Jia/AIME_2024") as error:
        prepare("math", f"hub:{tmp_path / 'hub'}", tmp_path / "out")
    assert "\n" not in str(error.value)
    (tmp_path / "hub" / AIME[0].repo / AIME[0].files).unlink()
    with pytest.raises(UserError, match=r"holds no Maxwell-Jia/AIME_2024.*hf download Maxwell-Jia/AIME_2024"):
        prepare("math", f"hub:{tmp_path / 'hub'}", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_without_a_network_the_hub_is_one_line(tmp_path, monkeypatch):
    import httpx2

    def unreachable(*_, **__):
        raise httpx2.ConnectError("[Errno -2] Name or service not known")

    monkeypatch.setattr("huggingface_hub.HfFileSystem.glob", unreachable)
    monkeypatch.setattr("huggingface_hub.HfFileSystem._info", unreachable, raising=False)
    monkeypatch.setattr("datasets.load_dataset", unreachable)
    with pytest.raises(UserError, match="cannot load Lichess/chess-puzzles at 479ea9bc9f68") as error:
        prepare("chess", "hub", tmp_path / "out")
    assert "\n" not in str(error.value) and "hub:DIR" in str(error.value)


def test_the_corpus_is_found_in_a_mirror(tmp_path):
    path = tmp_path / WIKI_18.repo / WIKI_18.files
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress(b""))
    assert Hub(tmp_path).fetch_corpus(tmp_path / "elsewhere") == path


@needs_real_data
def test_real_problems_laid_out_as_on_the_hub_score_1(tmp_path):
    def read(name):
        return [json.loads(line) for line in Path(REAL, "math", f"{name}.jsonl").read_text().splitlines()]

    put_dapo(tmp_path / "hub", read("dapo_dev_2000"))
    put_aime(tmp_path / "hub", read("aime2024"), [row for row in read("amc23") if row["answer"].isdigit()][:30])
    card = prepare("math", f"hub:{tmp_path / 'hub'}", tmp_path / "out")
    splits = load_splits("math", tmp_path / "out")
    adds_up(card, splits)
    assert [len(splits[s]) for s in SPLITS] == [1987 - 256, 256, 60]
    assert card.dropped == {DUPLICATE: 2000 - 2 + 11, CONFLICT: 4}
    assert len({content_key(t.shown["question"]) for s in SPLITS for t in splits[s]}) == 1987 + 60


@needs_real_data
def test_real_questions_laid_out_as_on_the_hub_score_1(tmp_path, monkeypatch):
    monkeypatch.setitem(recipes.SIZES["search-qa"], "test", 7 * 15)  # so many there are of each

    def read(name):
        return [json.loads(line) for line in Path(REAL, "qa", f"{name}.jsonl").read_text().splitlines()]

    names = {part.label: [] for part in FLASHRAG}
    for row in read("qa_dev_eval"):
        names[next(n for n in names if n.startswith(row["dataset"][:5]))].append((row["question"], row["answers"]))
    train = [
        (r["question"], r["answers"], r["dataset"]) for name in ("hotpotqa_train", "musique_train") for r in read(name)
    ]
    train += [(q, a, "nq") for group in names.values() for q, a in group]
    put_questions(tmp_path / "hub", train, names)
    card = prepare("search-qa", f"hub:{tmp_path / 'hub'}", tmp_path / "out")
    splits = load_splits("search-qa", tmp_path / "out")
    adds_up(card, splits)
    assert len(splits["test"]) == 105 and len(splits["harness"]) == 256
    for task in (t for s in SPLITS for t in splits[s]):
        assert exact_match(task.gold[0], task.gold).score == 1


@needs_real_data
@pytest.mark.slow
def test_real_puzzles_laid_out_as_on_the_hub_fill_the_paper_s_sizes(tmp_path):
    rows = {}
    for name in ("lichess_puzzles_1000", "lichess_puzzles_all_themes", "lichess_mates_12008"):
        with Path(REAL, "chess", f"{name}.csv").open(newline="") as file:
            rows |= {row["PuzzleId"]: row for row in csv.DictReader(file)}
    put_puzzles(tmp_path / "hub", list(rows.values()))
    card = prepare("chess", f"hub:{tmp_path / 'hub'}", tmp_path / "out")
    splits = load_splits("chess", tmp_path / "out")
    adds_up(card, splits)
    assert [len(splits[s]) for s in SPLITS] == [16_384, 256, 256]
    assert all(verify_line(t.gold.line[::2], t.shown["fen"], t.gold).score == 1 for s in SPLITS for t in splits[s])


@pytest.mark.hub
@pytest.mark.parametrize("hub_set", [s for sets in SETS.values() for s in sets], ids=lambda s: f"{s.repo}/{s.files}")
def test_every_pinned_set_loads_and_its_rows_pass_the_checks(hub_set):
    rows = Hub().load(hub_set)
    source = Hub().source(hub_set, len(rows))
    assert source.revision == hub_set.revision and len(rows) > 29
    domain = next(d for d, sets in SETS.items() if hub_set in sets)
    first = rows.select(range(min(2000, len(rows))))
    pool = reader_of(domain).pool(recipes._rows(first, hub_set, range(len(first))))
    assert len(pool.tasks) > 0.01 * len(first)  # DAPO-Math-17K repeats its problems


@pytest.mark.hub
@pytest.mark.parametrize("domain", SIZES)
def test_the_recipes_fill_the_paper_s_sizes_from_the_hub(tmp_path, domain):
    card = prepare(domain, "hub", tmp_path / "out")
    adds_up(card, load_splits(domain, tmp_path / "out"))
    for split in ("harness", "test") if domain == "math" else SPLITS:  # DAPO-Math-17K holds some problems twice
        assert card.splits[split].tasks == SIZES[domain][split]
