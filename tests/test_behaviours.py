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
