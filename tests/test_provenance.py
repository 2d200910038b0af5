"""Provenance: an answer that scores was written by the model, whatever an honest harness does to its text."""

from __future__ import annotations

import time

import pytest

from whale_envs import Episode
from whale_envs.episode import Call, Reply, ToolCall, Verdict
from whale_envs.harness.audit import provenance
from whale_envs.harness.helpers import BoardView, ExecResult, Passage


def episode(answer: object, *replies: str, tools: list[ToolCall] | None = None, score: float = 1.0) -> Episode:
    calls = [Call([{"role": "user", "content": "q"}], Reply(text)) for text in replies]
    return Episode("t", "d", "h", 0, calls=calls, tool_calls=tools or [], answer=answer, verdict=Verdict(score, ""))


def call(name: str, arg: str, result: object, after: int) -> ToolCall:
    return ToolCall(name, [arg], {}, result, 0.0, after)


@pytest.mark.parametrize(
    ("answer", "reply"),
    [
        ("Ada Lovelace", "<answer>ada LOVELACE.</answer>"),
        ("Lord of the Rings", "I think it is 'The Lord of The Rings'!"),
        ("Jose Nunez", "<answer>José Núñez</answer>"),
        ("42", "thus \\boxed{42}"),
        ("1234", "\\boxed{1,234}"),
        ("1234", "\\boxed{1{,}234}"),
        ("25", "\\boxed{025}"),
        ("70", "it is 70.0"),
        ("-7", "\\boxed{-7}"),
        ("New York City", "New York (City)"),
        ("北京", "答案是北京。"),
    ],
)
def test_what_an_honest_harness_does_to_a_reply_is_forgiven(answer: str, reply: str) -> None:
    assert provenance(episode(answer, "nothing yet", reply)) is None


@pytest.mark.parametrize(
    ("answer", "reply"),
    [("Ada", "Adam"), ("42", "142 and 4 2"), ("Ada Byron", "Byron, then Ada"), ("7", "seven"), ("Ada", "")],
)
def test_what_the_model_did_not_write_is_not_its_answer(answer: str, reply: str) -> None:
    found = provenance(episode(answer, reply))
    assert found is not None and found.layer == "provenance" and "task t" in str(found)
    assert provenance(episode(answer, reply, score=0.0)) is None, "what is not solved gains nothing"


def test_the_output_of_a_program_counts_when_the_program_is_the_models() -> None:
    code = "a = 40\nprint(a + 2)"
    printed = ExecResult("42\n", "", "ok")
    said = f"<python>\n{code}\n</python>"
    assert provenance(episode("42", said, tools=[call("python", f"import math\n{code}", printed, 1)])) is None
    assert provenance(episode("42", said, tools=[call("python", code, {"stdout": "42"}, 1)])) is None
    assert provenance(episode("42", "hm", said, tools=[call("python", code, printed, 1)])) is not None, "written later"
    assert provenance(episode("42", said, tools=[call("python", "print(6 * 7)", printed, 1)])) is not None


@pytest.mark.parametrize(
    ("own", "honest"),
    [
        ("{}\nprint(6 * 7)", False),
        ("b = 42\n{}\nprint(b)", False),
        ("{}; print(42)", False),
        ("{}\nprint(50)", False),
        ("{}\nprint(a + 20)", False),
        ("{}\nprint(eval('6*7'))", False),
        ("{}\nimport os; print(42)", False),
        ("print(41 + 1)\ntry:\n    {}\nfinally:\n    pass", False),
        ("from math import *\nimport sympy as sp\n{}", True),
        ("try:\n    {}\nexcept ValueError as error:\n    pass", True),
        ("{}\nprint(a + 2)", True),
        ("{}\nprint(repr(a + 2))", True),
        ("{}\nprint(a)", True),
    ],
)
def test_what_a_harness_adds_to_a_program_must_not_be_what_prints(own: str, honest: bool) -> None:
    """The model's program is long, so that no share of it says whose the output is."""
    code = "\n".join(["a = 40", *(f"# step {n} of many" for n in range(9)), "a + 2"])
    said = f"Let us see:\n<python>{code}</python>"
    ran = call("python", own.format(code), ExecResult("42\n", "", "ok"), 1)
    assert (provenance(episode("42", said, tools=[ran])) is None) == honest


@pytest.mark.parametrize(
    ("before", "kept", "honest"),
    [
        ("import sympy as sp\nfrom math import *", True, True),
        ("a = 40", True, True),  # the model's
        ("def print(*values): raise SystemExit(42)", True, False),
        ("int = lambda text: 42", True, False),
        ("int = lambda text: 42", False, True),  # gone with its process
    ],
)
def test_names_that_a_harness_has_left_speak_for_it(before: str, kept: bool, honest: bool) -> None:
    said = "<python>\na = 40\nprint(a + int('2'))\n</python>"
    ran = ToolCall("python", [before], {"keep": kept}, ExecResult("", "", "ok"), 0.0, 1)
    own = ToolCall("python", [said[9:-10]], {"keep": True}, ExecResult("42\n", "", "ok"), 0.0, 1)
    assert (provenance(episode("42", said, tools=[ran, own])) is None) == honest


def test_a_line_is_the_models_as_often_as_it_wrote_it() -> None:
    lines = ["n = 0", "n += 1", "print(n)"]
    for times, honest in ((1, True), (7, False)):
        code = "\n".join([lines[0], *[lines[1]] * times, lines[2]])
        ran = call("python", code, ExecResult("42\n", "", "ok"), 1)
        assert (provenance(episode("42", "\n".join(lines), tools=[ran])) is None) == honest


def test_a_program_of_a_harness_takes_no_hours_to_read() -> None:
    lines = ["print(" + ")" * 300_000 + "x", "from" + "import" * 50_000 + "!", *map(str, range(40_000))]
    begun = time.process_time()
    for line in (*lines[:2], "\n".join(lines[2:])):
        ran = call("python", f"a = 42\n{line}", ExecResult("42\n", "", "ok"), 1)
        assert provenance(episode("42", "<python>a = 42</python>", tools=[ran])) is None  # the model wrote 42 itself
        assert provenance(episode("43", "<python>a = 42</python>", tools=[ran])) is not None
    assert time.process_time() - begun < 30  # where it takes less than one


def test_a_passage_does_not_count_whoever_searched() -> None:
    found = [Passage("1", "Ada", "Ada's mentor is Mary.")]
    assert provenance(episode("Mary", "<search>Ada mentor</search>", tools=[call("search", "Ada mentor", found, 1)]))


def board(*legal: tuple[str, str]) -> BoardView:
    return BoardView("fen", "board", tuple(legal))


@pytest.mark.parametrize("reply", ["<move>d7h3</move>", "Qh3#", "qh3", "d7-h3 mates", "I play D7H3!", "Queen: Qd7h3"])
def test_a_move_may_be_named_in_any_notation(reply: str) -> None:
    start = ToolCall("board", [], {}, board(("d7h3", "Qh3#"), ("d7d8", "Qd8")), 0.0, 0)
    played = call("move", "d7h3", board(), 1)
    assert provenance(episode(None, reply, tools=[start, played])) is None


def test_a_move_that_the_model_did_not_name_is_not_its_move() -> None:
    start = ToolCall("board", [], {}, board(("d7h3", "Qh3#"), ("d7d8", "Qd8")), 0.0, 0)
    second = ToolCall("move", ["g7g8"], {}, board(), 0.0, 2)
    first = ToolCall("move", ["d7h3"], {}, board(("g7g8", "Kg8")), 0.0, 1)
    assert provenance(episode(None, "Qd8", tools=[start, first]))
    assert provenance(episode(None, "Qh3", "Kg8", tools=[start, first, second])) is None
    assert provenance(episode(None, "Qh3", "Kf8", tools=[start, first, second]))
