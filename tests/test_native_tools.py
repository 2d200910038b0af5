"""Native tool calls from end to end: a harness that offers tools, an endpoint or a model that calls them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_server import KEY, ChatServer, Status, called

from whale_envs import Harness, UserError, load_domain, read_episodes
from whale_envs.harness.load import load_harness
from whale_envs.services import Patience
from whale_train import cli
from whale_train.ledger import dollars, tokens
from whale_train.policies.openai import OpenAIPolicy
from whale_train.preflight import preflight
from whale_train.rollout import rollout

NATIVE = '''
"""SearchQA: the tool is offered as a schema, and what is no call is answered with a reminder."""
from whale_envs.harness import Ask, system, tag, tool, user

SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search an encyclopedia.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string"}, "k": {"type": "integer"}},
            "required": ["query"],
        },
    },
}

def run(task, tools):
    messages = [system("Search, then answer in <answer>."), user(task.question)]
    for _ in range(4):
        reply = yield Ask(messages, tools=[SEARCH])
        if answer := tag(reply.text, "answer"):
            return answer
        messages = [*messages, reply.message]
        for call in reply.tool_calls:
            found = tools.search(str(call["arguments"].get("query", "")), k=1)
            messages.append(tool("\\n".join(p.head(50) for p in found)))
        if not reply.tool_calls:
            messages.append(user("Call search, or answer."))
'''
QUICK = Patience(retries=1, backoff=0.0, max_wait=1.0, silence=30.0, total=60.0)


def agent(body: dict[str, Any]) -> Any:
    """Searches in two calls at once, then writes a broken one, then answers by what was found."""
    assert body["tools"][0]["function"]["name"] == "search"
    messages = body["messages"]
    question = messages[1]["content"]
    turn = sum(m["role"] == "assistant" for m in messages)
    if turn == 0:
        queries = (json.dumps({"query": question, "k": 1}), json.dumps({"query": question.split()[-1]}))
        return called(("search", queries[0]), ("search", queries[1]), content="I look.")
    if turn == 1:
        return called(("search", '{"query": oops'))
    assert messages[-1] == {"role": "user", "content": "Call search, or answer."}
    found = next(m["content"] for m in messages if m["role"] == "tool")
    return f"<answer>{found.splitlines()[0]}</answer>"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatServer]:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr("whale_train.policies.openai.PATIENCE", QUICK)
    with ChatServer(agent) as server:
        yield server


@pytest.mark.parametrize("trusted", [True, False])
def test_a_harness_with_native_tools_plays_search_qa_over_an_endpoint(server: ChatServer, trusted: bool) -> None:
    domain, harness = load_domain("search-qa"), Harness(NATIVE, "native", trusted)
    policy = OpenAIPolicy("m", server.base, price=(1.0, 5.0))
    episodes = rollout(policy, domain, harness, domain.splits.weight[:4], "weight", seed=0)
    for episode in episodes:
        assert episode.failure is None and episode.answer
        assert [len(call.reply.tool_calls) for call in episode.calls] == [2, 0, 0]
        assert [call.args for call in episode.tool_calls] == [
            [c["arguments"]["query"]] for c in episode.calls[0].reply.tool_calls
        ]
        broken = episode.calls[1].reply
        assert broken.text == '<tool_call>\n{"name": "search", "arguments": {"query": oops}\n</tool_call>'
        assert '"name":"search"' in episode.transcript() and "I look." in episode.transcript()
        assert episode.weights == policy.weights_hash
    assert tokens(episodes) == (4 * 3 * 20, 4 * 3 * 4)
    assert dollars(episodes) == pytest.approx(12 * 40 / 1e6)
    last = server.requests[-1]["messages"]
    first, second = last[2]["tool_calls"]
    assert [m["tool_call_id"] for m in last if m["role"] == "tool"] == [first["id"], second["id"]]
    assert json.loads(first["function"]["arguments"]) == {"query": last[1]["content"], "k": 1}


def test_history_of_any_kind_is_written_as_the_api_wants_it(server: ChatServer) -> None:
    source = """
from whale_envs.harness import assistant, tool, user

def run(task, tools):
    call = {"name": "search", "arguments": {"query": "x"}}
    shown = [{"role": "assistant", "content": "So.", "tool_calls": [call, call]}, tool("one")]
    reply = yield [user("q"), *shown, assistant("A"), tool("none asked"), {"role": "user", "content": "r", "extra": 1}]
    return reply.text
"""
    server.say = lambda body: "done"
    domain, harness = load_domain("search-qa"), Harness(source, "odd", True)
    (episode,) = rollout(OpenAIPolicy("m", server.base), domain, harness, domain.splits.weight[:1], "weight", seed=0)
    assert episode.answer == "done"
    said = server.requests[-1]["messages"]
    assert [m["role"] for m in said] == ["user", "assistant", "tool", "assistant", "user", "user"]
    assert said[1]["content"] == 'So.\n<tool_call>\n{"name": "search", "arguments": {"query": "x"}}\n</tool_call>'
    assert len(said[1]["tool_calls"]) == 1 and said[1]["tool_calls"][0]["id"] == said[2]["tool_call_id"]
    assert said[5] == {"role": "user", "content": "r"}


def test_one_request_that_fails_fails_one_episode(server: ChatServer) -> None:
    domain = load_domain("search-qa")
    unlucky = domain.splits.weight[1].shown["question"]
    server.say = lambda body: Status(500) if unlucky in body["messages"][-1]["content"] else "<answer>x</answer>"
    policy = OpenAIPolicy("m", server.base)
    episodes = rollout(policy, domain, load_harness("h0", "search-qa"), domain.splits.weight[:4], "weight", seed=0)
    owners = [e.failure.owner if e.failure else None for e in episodes]
    assert owners == [None, "policy", None, None]


# the command line


def whale(*args: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = cli.main(list(args))
    return code, capsys.readouterr().err.strip()


def test_eval_takes_an_endpoint_and_says_what_it_cost(
    server: ChatServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "native.py").write_text(NATIVE)
    out = tmp_path / "run"
    command = ["eval", "--harness", str(tmp_path / "native.py"), "--policy", f"openai:m@1/5@{server.base}"]
    code, said = whale(*command, "--limit", "3", "--repeats", "2", "--out", str(out), capsys=capsys)
    assert code == 0, said
    result = json.loads((out / "result.json").read_bytes())
    assert result["dollars"] == pytest.approx(3 * 2 * 3 * 40 / 1e6)
    episodes = list(read_episodes(out / "test" / "episodes.jsonl"))
    assert len(episodes) == 6 and dollars(episodes) == pytest.approx(result["dollars"])
    assert KEY not in "".join(f.read_text() for f in out.rglob("*.json*"))


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (Status(401), "OPENAI_API_KEY: set a valid one"),
        (Status(404, "no model m"), "no model m.*see the URL in --policy"),
        (Status(400, "tools need --enable-auto-tool-choice"), "failed in all of 2 trial episodes.*auto-tool-choice"),
        (Status(500), "failed in all of 2 trial episodes.*HTTP 500"),
        (Status(200, body=b"<html>"), "failed in all of 2 trial episodes.*no chat completion"),
    ],
)
def test_an_endpoint_that_is_wrong_every_time_ends_in_one_line_before_anything_is_spent(
    server: ChatServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], status: Status, said: str
) -> None:
    server.say = lambda body: status
    code, line = whale("eval", "--policy", f"openai:m@{server.base}", "--out", str(tmp_path / "o"), capsys=capsys)
    assert code == 2 and len(line.splitlines()) == 1
    assert re.search(said, line), line
    assert len(server.requests) <= 4


def test_weights_behind_an_api_are_not_trained_and_the_line_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("train", "run"):
        code, line = whale(command, "--policy", "openai:m@http://127.0.0.1:9/v1", capsys=capsys)
        assert code == 2 and "behind an API, and cannot be trained" in line and len(line.splitlines()) == 1


def test_an_endpoint_that_says_nothing_useful_is_caught_by_the_preflight(server: ChatServer) -> None:
    server.say = lambda body: " \n"
    domain = load_domain("search-qa")
    with pytest.raises(UserError, match="returned nothing"):
        preflight(OpenAIPolicy("m", server.base), domain, load_harness("h0", "search-qa"))
