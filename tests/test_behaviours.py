"""What an episode says of itself: where an answer was lost, whether the format was followed, what was cut off."""

from __future__ import annotations

from typing import Any

import pytest

from whale_envs import Episode, Harness, HarnessEnv, Reply, Task, load_domain
from whale_envs.domain import format_followed
from whale_envs.episode import Call, ToolCall
from whale_envs.harness.helpers import user


def play(env: HarnessEnv, task: Task, replies: list[Any]) -> dict[str, bool]:
    _, info = env.reset(seed=0, options={"task": task.id})
    for reply in replies:
        if "behaviours" not in info:
            *_, info = env.step(reply)
    behaviours: dict[str, bool] = info["behaviours"]
    return behaviours


@pytest.fixture(scope="module")
def search() -> HarnessEnv:
    return HarnessEnv("search-qa", harness="strong", split="harness")


def one_hop(env: HarnessEnv) -> tuple[Task, str]:
    """A task of one hop, and a query that finds its answer."""
    task = next(t for t in env.tasks if t.shown["question"].count(" of ") == 1)
    return task, task.shown["question"].removeprefix("What is the ").removesuffix("?")


def test_search_says_where_an_answer_was_lost(search: HarnessEnv) -> None:
    task, query = one_hop(search)
    found = f"<search>{query}</search>"
    right = play(search, task, [found, f"<answer>{task.gold[0]}</answer>"])
    assert right["answer retrieved"] and right["answer shown"] and right["extracted given retrieved"]
    wrong = play(search, task, [found, "<answer>no such thing</answer>"])
    assert wrong["answer shown"] and not wrong["extracted given retrieved"] and not wrong["extracted given shown"]
    blind = play(search, task, [f"<answer>{task.gold[0]}</answer>"])
    assert not blind["answer retrieved"] and blind["answered"] and not blind["searched"]
    assert not any(name.startswith("extracted") for name in blind)


def test_an_answer_that_was_found_but_not_shown_is_told_apart() -> None:
    source = """
def run(task, tools):
    reply = yield [{"role": "user", "content": task.question}]
    tools.search(reply.text, k=20)
    reply = yield [{"role": "tool", "content": "nothing"}]
    return reply.text
"""
    env = HarnessEnv("search-qa", harness=Harness(source, trusted=True), split="harness")
    task, query = one_hop(env)
    facts = play(env, task, [query, "x"])
    assert facts["answer retrieved"] and not facts["answer shown"]
    assert facts["extracted given retrieved"] is False and "extracted given shown" not in facts


@pytest.mark.parametrize("domain", ["search-qa", "math", "chess"])
def test_a_reply_that_is_cut_off_or_follows_no_format_says_so(domain: str) -> None:
    env = HarnessEnv(domain, split="harness")
    facts = play(env, env.tasks[0], [Reply("hm", "length")] * 20)
    assert facts["cap hit"] and not facts["format followed"]
    facts = play(env, env.tasks[0], ["hm"] * 20)
    assert not facts["cap hit"] and not facts["format followed"]


def test_math_says_whether_an_answer_was_boxed() -> None:
    env = HarnessEnv("math", split="harness")
    assert play(env, env.tasks[0], ["so \\boxed{7}"])["boxed answer found"]
    facts = play(env, env.tasks[0], ["so 7"])
    assert not facts["boxed answer found"] and not facts["answer given"]


def test_chess_tells_illegal_moves_from_wrong_ones() -> None:
    domain = load_domain("chess")
    env = HarnessEnv(domain, harness="strong", split="harness")
    task = next(t for t in env.tasks if len(t.gold.line) == 1)
    illegal = play(env, task, ["<move>a1a1</move>", f"<move>{task.gold.line[0]}</move>"])
    assert illegal["illegal move"] and illegal["first move right"] and illegal["format followed"]
    line = domain.world(task).tools["board"]().legal  # type: ignore[attr-defined]
    wrong = next(uci for uci, san in line if not san.endswith("#"))
    facts = play(env, task, [f"<move>{wrong}</move>"])
    assert not facts["illegal move"] and facts["moved"] and not facts["first move right"]


NATIVE_CHESS = """
from whale_envs.harness import Ask, user

def run(task, tools):
    while True:
        board = tools.board()
        reply = yield Ask([user(board.fen)], tools=[{"name": "move"}])
        for call in reply.tool_calls or [{"arguments": {"move": reply.text}}]:
            try:
                tools.move(**call["arguments"])
            except ValueError:
                pass
"""


def test_a_chess_format_is_followed_when_moves_reach_the_board_however_a_harness_takes_them() -> None:
    env = HarnessEnv("chess", harness=Harness(NATIVE_CHESS, "native", True), split="harness")
    task = next(t for t in env.tasks if len(t.gold.line) == 1)
    (mate,) = task.gold.line
    for said in (mate, Reply("", tool_calls=[{"name": "move", "arguments": {"move": mate}}])):
        facts = play(env, task, ["a1a1", said])
        assert facts["format followed"] and facts["illegal move"] and facts["first move right"]
    for said in ("hm", "<move>", "I would castle here", Reply("", tool_calls=[{"arguments": {"move": None}}])):
        assert not play(env, task, [said, mate])["format followed"]
    strong = HarnessEnv("chess", harness="strong", split="harness")
    assert not play(strong, task, ["hm", f"<move>{mate}</move>"])["format followed"]
    assert play(strong, task, [f"I think of {mate}"])["format followed"]  # it reads that, too


@pytest.mark.parametrize("role", ["user", "system", "tool"])
@pytest.mark.parametrize("fresh", [True, False])
def test_an_answer_is_shown_in_whatever_message_it_stands(role: str, fresh: bool) -> None:
    source = f"""
from whale_envs.harness import user

def run(task, tools):
    first = user(task.question)
    reply = yield [first]
    found = tools.search(reply.text)
    shown = {{"role": "{role}", "content": found[0].text}}
    reply = yield [first, shown] if {fresh} else [first, reply.message, shown]
    return reply.text
"""
    env = HarnessEnv("search-qa", harness=Harness(source, trusted=True), split="harness")
    task, query = one_hop(env)
    facts = play(env, task, [query, task.gold[0]])
    assert facts["answer shown"] and facts["extracted given shown"]


def test_what_the_model_says_or_a_question_holds_was_not_found() -> None:
    source = """
from whale_envs.harness import user

def run(task, tools):
    reply = yield [user(task.question)]
    try:
        tools.search(reply.text, k=99)
    except ValueError:
        pass
    tools.search("zzzz")
    reply = yield [user(task.question), reply.message, user("nothing")]
    reply = yield [user(task.question)]
    return reply.text
"""
    env = HarnessEnv("search-qa", harness=Harness(source, trusted=True), split="harness")
    world, _ = env.domain.world, env.reset(seed=0)
    task = env.tasks[0]
    task = Task(task.id, {"question": f"Is it {task.gold[0]}?"}, task.gold)
    env.begin(task, 0)
    for reply in (f"it is {task.gold[0]}", "hm"):
        env.step(reply)
    facts = env.step(task.gold[0])[4]["behaviours"]
    assert facts["searched"] and not facts["answer shown"] and not facts["answer retrieved"]
    assert world(task).tools  # the task is one of the domain's kind


def test_a_search_that_was_refused_is_no_search_and_no_use() -> None:
    source = """
def run(task, tools):
    reply = yield [{"role": "user", "content": task.question}]
    try:
        tools.search(reply.text, k=99)
    except ValueError:
        pass
    yield [{"role": "user", "content": task.question}]
"""
    env = HarnessEnv("search-qa", harness=Harness(source, trusted=True), split="harness")
    task, query = one_hop(env)
    facts = play(env, task, [query, "x"])
    assert not facts["searched"] and not facts["format followed"] and not facts["answer retrieved"]


@pytest.mark.parametrize(
    ("calls", "tools_after", "answer", "followed"),
    [
        (0, [], None, True),
        (1, [], "x", True),
        (1, [], None, False),
        (2, [1], "x", True),
        (2, [0, 2], "x", False),
        (2, [1, 1, 2], None, True),
        (3, [1, 3], "x", False),
    ],
)
def test_the_format_was_followed_when_each_reply_led_to_something(
    calls: int, tools_after: list[int], answer: str | None, followed: bool
) -> None:
    episode = Episode("t", "toy", "h", 0, answer=answer)
    episode.calls = [Call([user("a")], Reply("x"))] * calls
    episode.tool_calls = [ToolCall("f", [], {}, None, 0.0, after) for after in tools_after]
    assert format_followed(episode) is followed
