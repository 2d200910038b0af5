"""Math problems from files: every row is a task or counted with its reason, and bad input is one clear line."""

import json
from pathlib import Path

import gymnasium
import pytest
from hypothesis import given
from hypothesis import strategies as st
from real_data import REAL, needs_real_data

import whale_envs  # noqa: F401  registers the envs
from whale_envs.data.folder import load_splits
from whale_envs.data.math_files import NO_ANSWER, NO_PROBLEM, NOT_INTEGER, ProblemReader, content_key
from whale_envs.data.reader import CONFLICT, DUPLICATE
from whale_envs.domains.math_code import MathCode
from whale_envs.errors import UserError
from whale_envs.harness.helpers import ExecResult
from whale_envs.task import SPLITS

DAPO = (
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\nP\n\n"
    'Remember to put your answer on its own line after "Answer:".'
)
FILES = ["aime2024", "amc23", "math500", "gsm8k_test_1319", "dapo_dev_2000"]


def write(path, rows):
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows) + "\n", encoding="utf-8")
    return path


def prints(code, session):
    """In the sandbox's place: `print('...')` of a literal."""
    return ExecResult(code.removeprefix("print('").removesuffix("')") + "\n", "", "ok")


def read_problems(path):
    pool = ProblemReader().pool(ProblemReader().read(path))
    return list(pool.tasks.values()), pool.dropped


def rows_of(path):
    return sum(1 for line in path.read_text(encoding="utf-8").splitlines() if line.strip())


@needs_real_data
@pytest.mark.parametrize("name", FILES)
def test_on_every_real_file_gold_scores_1_and_every_dropped_row_is_counted(name):
    path = Path(REAL) / f"math/{name}.jsonl"
    domain = MathCode(str(path), prints)
    tasks = [t for split in SPLITS for t in domain.splits[split]]
    for task in tasks:
        world = domain.world(task)
        assert world.verdict(world.solve()).score == 1
    assert len(tasks) + sum(domain.splits.dropped.values()) == rows_of(path)
    assert len({content_key(t.shown["question"]) for t in tasks}) == len(tasks)


@needs_real_data
def test_real_files_drop_what_is_known_to_be_unusable():
    dropped = {name: load_splits("math", Path(REAL) / f"math/{name}.jsonl").dropped for name in FILES}
    assert dropped["aime2024"] == dropped["amc23"] == dropped["gsm8k_test_1319"] == {}
    assert dropped["math500"] == {NOT_INTEGER: 170}
    assert dropped["dapo_dev_2000"] == {DUPLICATE: 11, CONFLICT: 2}


@needs_real_data
def test_an_aime_file_of_960_rows_is_30_problems(tmp_path):
    lines = (Path(REAL) / "math/aime2024.jsonl").read_text().splitlines()
    splits = load_splits("math", write(tmp_path / "aime960.jsonl", lines * 32))
    assert sum(len(splits[s]) for s in SPLITS) == 30
    assert splits.dropped == {DUPLICATE: 930}


@needs_real_data
def test_gym_make_plays_a_real_file():
    path = Path(REAL) / "math/aime2024.jsonl"
    env = gymnasium.make("whale/Math", dataset=str(path))
    observation, info = env.reset(seed=0)
    assert "\\boxed" in observation[0]["content"]
    gold = env.unwrapped.tasks.by_id(info["task_id"]).gold
    _, reward, terminated, _, _ = env.step(f"So it is \\boxed{{0{gold}.0}}.")
    assert (reward, terminated) == (1.0, True)
    env.close()


@pytest.mark.parametrize(
    "row",
    [
        {"problem": "P", "answer": "42"},
        {"Problem": "P", "Answer": 42, "Solution": "long, then \\boxed{7}"},
        {"question": "P", "answer": "40+2=42\n#### 42"},
        {"problem": "P", "solution": "so $\\boxed{42}$ it is", "level": 3},
        {"prompt": "P", "answer": "\\boxed{\\$42}"},
        {"question": "P", "gold": 42.0},
        {"question": "P", "expected_answer": ["42"]},
        {"prompt": [{"role": "user", "content": DAPO}], "reward_model": {"ground_truth": "42", "style": "rule"}},
    ],
)
def test_columns_are_found_by_name_in_every_known_shape(tmp_path, row):
    tasks, dropped = read_problems(write(tmp_path / "p.jsonl", [row]))
    assert [(t.shown, t.gold) for t in tasks] == [({"question": "P"}, "42")]
    assert dropped == {}


def test_integers_of_any_length_are_kept_digit_for_digit(tmp_path):
    long = "9" * 10_000
    path = write(tmp_path / "p.jsonl", [f'{{"problem": "P{i}", "answer": {long}{i}}}' for i in range(3)])
    domain = MathCode(str(path), prints)
    assert {t.gold for s in SPLITS for t in domain.splits[s]} == {f"{long}{i}" for i in range(3)}


def test_every_reason_for_dropping_is_counted(tmp_path):
    rows = [
        {"problem": "What is $1 + 1$?", "answer": "2"},
        {"problem": "what is \\( 1+1 \\)", "answer": "02"},
        {"problem": "a", "answer": "1"},
        {"problem": "A.", "answer": "3"},
        {"problem": "b", "answer": "\\frac{1}{2}"},
        {"problem": "c", "answer": "---"},
        {"problem": "d", "answer": None},
        {"problem": "e", "answer": ""},
        {"problem": "  ", "answer": "1"},
        {"problem": "求最小的正整数 n", "answer": "-7"},
        {"problem": "1 - 1", "answer": "0"},
        {"problem": "1 + 1", "answer": "2"},
        "",
    ]
    tasks, dropped = read_problems(write(tmp_path / "p.jsonl", rows))
    assert [t.gold for t in tasks] == ["2", "-7", "0", "2"]
    assert dropped == {NOT_INTEGER: 2, NO_ANSWER: 2, NO_PROBLEM: 1, DUPLICATE: 1, CONFLICT: 2}
    assert len(tasks) + sum(dropped.values()) == len(rows) - 1


@given(st.permutations(range(12)))
def test_a_files_order_does_not_change_its_splits(tmp_path_factory, order):
    path = tmp_path_factory.mktemp("order") / "p.jsonl"
    splits = load_splits("math", write(path, [{"problem": f"problem {i}", "answer": i} for i in order]))
    again = load_splits("math", write(path, [{"problem": f"problem {i}", "answer": i} for i in range(12)]))
    for split in SPLITS:
        assert [t.id for t in splits[split]] == [t.id for t in again[split]]
    assert [len(splits[s]) for s in SPLITS] == [6, 3, 3]


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("$x+y$", "x + y", True),
        ("x+y", "x-y", False),
        ("1.5", "15", False),
        ("3,4", "34", False),
        ("the numbers $3$, $4$.", "The numbers 3, 4", True),
        ("\\(c, o\\)", "$c,o$", True),
        ("“literally 1434”", "literally 1434", True),
        ("x^2", "x2", False),
        ("x\\neq 1", "x=1", False),
        ("求 n 的最小可能值。", "求n的最小可能值.", True),
    ],
)
def test_content_ignores_typography_and_nothing_else(a, b, same):
    assert (content_key(a) == content_key(b)) is same


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (["{"], r"p\.jsonl:1 is no JSON"),
        ([{"problem": "P", "answer": 1}, "[1]"], r"p\.jsonl:2 is a JSON list"),
        ([{"answer": 1}], r"p\.jsonl:1 has no problem: expected a column problem or .*; it has answer"),
        ([{"problem": "P", "id": 3}], r"p\.jsonl:1 has no answer: expected a column answer or "),
        ([{"problem": {"text": "P"}, "answer": 1}], r"p\.jsonl:1: the problem is a dict"),
        ([{"problem": "P", "answer": [1, 2]}], r"p\.jsonl:1: the answer is a list"),
        (['{"problem": "\\ud800", "answer": 1}'], r"p\.jsonl:1 is no JSON .it holds half of a surrogate pair"),
        (["[" * 100_000], r"p\.jsonl:1 is no JSON"),
        ([], r"holds no row"),
        (
            [{"problem": "P", "answer": "x"}] * 3,
            r"keeps 0 rows.*dropped: 3 x the answer is not an integer",
        ),
    ],
)
def test_a_malformed_row_is_one_line_with_its_number(tmp_path, rows, says):
    with pytest.raises(UserError, match=says) as caught:
        load_splits("math", write(tmp_path / "p.jsonl", rows))
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_one_line(tmp_path):
    with pytest.raises(UserError, match=r"no file .*; check the path"):
        MathCode(str(tmp_path / "none.jsonl"))
    with pytest.raises(UserError, match="holds no file whose name starts with"):
        MathCode(str(tmp_path))
    (tmp_path / "latin.jsonl").write_bytes(b'{"problem": "\xe9"}')
    with pytest.raises(UserError, match="UTF-8"):
        MathCode(str(tmp_path / "latin.jsonl"))
