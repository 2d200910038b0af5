"""The agent on the Chat Completions API: a whole search, streamed and not, and that each failure ends in one line."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_runs import DOMAIN, FAST, H0, SNIPPETS, TURNS, played_archive, run_search
from chat_server import CUT, HANG, KEY, ChatServer, Status, called, chunks, completion
from hypothesis import given
from hypothesis import strategies as st
from mistakes import one_line
from search_runs import files

from whale_envs import UserError
from whale_train.ledger import Ledger
from whale_train.meta_harness.archive import Archive
from whale_train.meta_harness.proposers import load_proposer
from whale_train.meta_harness.proposers.agent import AgentProposer, Limits
from whale_train.meta_harness.proposers.archive_tools import TOOLS
from whale_train.meta_harness.proposers.base import Cost, Proposal, ProposerError
from whale_train.meta_harness.proposers.brief import system_prompt
from whale_train.meta_harness.proposers.chat_stream import ChatAnswer
from whale_train.meta_harness.proposers.openai import LEFT_OUT, openai_service
from whale_train.meta_harness.proposers.service import StreamError
from whale_train.meta_harness.search import SearchSettings

Serve = Callable[..., ChatServer]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return played_archive(tmp_path_factory.mktemp("played"))


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Starts a server for a script, whose last entry answers every request from then on."""
    started: list[ChatServer] = []
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)

    def start(*script: Any, **options: Any) -> ChatServer:
        def say(body: dict[str, Any]) -> Any:
            said = script[min(len(server.requests), len(script)) - 1]
            return said(body) if callable(said) else said

        server = ChatServer(say, **options)
        started.append(server)
        return server.__enter__()

    yield start
    for server in started:
        server.__exit__()
        assert [w for body in server.requests for w in problems(body)] == []


def problems(body: dict[str, Any]) -> Iterator[str]:
    """What servers would refuse in a request: calls that are not answered, roles that do not alternate, no JSON."""
    open_calls: list[str] = []
    before = "assistant"
    for message in body["messages"][1:]:
        role = message["role"]
        if role == "tool":
            if not open_calls or message["tool_call_id"] != open_calls.pop(0):
                yield f"{message} answers no call"
        elif open_calls or role == before == "user" or (role == before == "assistant"):
            yield f"{role} after {before}, with {open_calls} to be answered"
        for call in message.get("tool_calls", ()):
            open_calls.append(call["id"])
            if not isinstance(json.loads(call["function"]["arguments"]), dict):
                yield f"{call}"
        before = role
    if before == "assistant" or [m["role"] for m in body["messages"]].count("system") != 1:
        yield "nothing to answer, or no brief"


def agent(server: ChatServer, limits: Limits = FAST, price: str = "") -> AgentProposer:
    return AgentProposer(openai_service(f"openai:m{price}@{server.base}"), DOMAIN, limits)


def propose(played: Path, server: ChatServer, **options: Any) -> tuple[list[Proposal], AgentProposer]:
    proposer = agent(server, **options)
    return proposer.propose(Archive(played, "search-qa"), 1, 7), proposer


def fails(played: Path, server: ChatServer, match: str, **options: Any) -> AgentProposer:
    """A proposal that fails with one line that says why."""
    proposer = agent(server, **options)
    with pytest.raises(ProposerError, match=match) as caught:
        proposer.propose(Archive(played, "search-qa"), 1, 0)
    assert "\n" not in str(caught.value) and KEY not in str(caught.value)
    return proposer


def use(tool: str, **input: Any) -> dict[str, Any]:
    return called((tool, json.dumps(input)))


def submit(source: str) -> dict[str, Any]:
    return use("submit", source=source, hypothesis="More is shown.", parents=[H0.hash], axes=["view"])


def shown(body: dict[str, Any]) -> list[str]:
    """The tool results at the end of a request."""
    messages = body["messages"]
    last = max(i for i, m in enumerate(messages) if m["role"] == "assistant")
    return [m["content"] for m in messages[last + 1 :]]


# ---------------------------------------------------------------------------------------------- a whole search


@pytest.mark.parametrize("streams", [True, False])
def test_a_round_with_a_local_model_ends_in_scored_candidates(tmp_path: Path, serve: Serve, streams: bool) -> None:
    look = called(("read", '{"path": "."}'), ("outcomes", json.dumps({"candidate": H0.hash})), content="I look.")
    think = completion({**look, "reasoning_content": "What is there?"}, "tool_calls")
    server = serve(think, submit(SNIPPETS + "\nrun(\n"), submit(SNIPPETS), submit(TURNS), Status(500))
    server.streams = streams
    proposer = agent(server, price="@1/10")
    archive = run_search(tmp_path, proposer, SearchSettings(rounds=1, candidates=2, tasks=6, backoff=0, refills=0))

    assert [archive.source(t.hash) for t in archive.rounds[0].tried] == [SNIPPETS, TURNS]
    assert archive.rounds[0].note == ""
    listed, outcomes = shown(server.requests[1])
    assert f"candidates/{H0.hash}/harness.py" in listed
    assert outcomes.endswith("[2 of 2 candidates are still to be submitted; 79 answers left.]")
    assert "does not parse" in shown(server.requests[2])[0]

    one = server.requests[0]
    assert [t["function"]["name"] for t in one["tools"]] == list(TOOLS)
    assert one["messages"][0]["role"] == "system" and one["max_tokens"] == 32_000 and one["stream"]
    assert "What is there?" not in json.dumps(server.requests), "thinking is not sent back"

    paid = Ledger(tmp_path / "ledger.jsonl").by_kind()["proposer"]
    assert (paid.prompt_tokens, paid.sampled_tokens) == (80, 16)
    assert paid.dollars == pytest.approx((80 * 1 + 16 * 10) / 1e6)

    log = [json.loads(line) for line in (tmp_path / "archive/exchanges/search-1-0.jsonl").read_text().splitlines()]
    assert one["messages"][:1] + [m for e in log for m in e["sent"]] == server.requests[-1]["messages"]
    assert log[0]["received"]["reasoning"] == "What is there?"
    assert KEY not in "".join(files(tmp_path).values())
    assert set(server.keys) == {f"Bearer {KEY}"}


def test_a_server_of_ones_own_wants_neither_key_nor_price(
    played: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    silent_on_usage = completion(submit(SNIPPETS), usage=None)
    found, proposer = propose(played, serve(silent_on_usage))
    assert [p.source for p in found] == [SNIPPETS] and proposer.cost == Cost()


def test_the_seed_goes_along_and_the_cap_goes_by_the_name_that_the_service_wants(
    played: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(submit(SNIPPETS))
    propose(played, server)
    assert server.requests[0]["seed"] == 7
    own = openai_service("openai:gpt@1/2")  # OpenAI's own, which is not asked for its models
    request = own.request("brief", [{"name": "t", "description": "d", "input_schema": {}}], 9, 2**40)
    assert request["max_completion_tokens"] == 9 and "max_tokens" not in request and request["seed"] == 0


# ---------------------------------------------------------------------------------------------- failures


def test_what_asking_again_mends_is_asked_again(played: Path, serve: Serve) -> None:
    half = chunks(completion(submit(SNIPPETS)))[:3]
    server = serve(
        Status(429, headers={"retry-after": "0"}), Status(503), use("list_candidates"), half, CUT, submit(SNIPPETS)
    )
    found, proposer = propose(played, server)
    assert [p.source for p in found] == [SNIPPETS]
    failures = [json.loads(line)["failure"] for line in proposer.exchanges]
    assert [bool(f) for f in failures] == [True, True, False, True, True, False]
    assert "HTTP 429" in failures[0] and "ended before the answer did" in failures[3]


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (Status(500, "CUDA error"), r"HTTP 500 \(.*CUDA error.*asked 3 times"),
        (Status(502, body=b"<html>\n\nno\n</html>"), "HTTP 502"),
        (CUT, "asked 3 times"),
        ([], "ended before the answer did"),
        (['{"choices": [{'], "an event that the API does not have"),
        (["<html>"], "an event that the API does not have"),
        ([{"choices": [{"delta": {"content": 7}}]}], "an event that the API does not have"),
        ([{"error": {"message": "out of memory"}}], "the service says: out of memory"),
        ([{"error": "out of memory"}], "the service says: out of memory"),
        (Status(200, body=b"[1, 2]"), "an event that the API does not have"),
        (Status(200, body=b""), "ended before the answer did"),
        (Status(200, body=b"\xff\xfe"), "asked 3 times"),
    ],
    ids=range(12),
)
def test_what_goes_on_for_ever_ends_in_one_line(played: Path, serve: Serve, reply: Any, why: str) -> None:
    server = serve(reply)
    proposer = fails(played, server, why)
    assert len(server.requests) == 3
    assert json.loads(proposer.exchanges[-1])["submitted"] == 0


def test_a_request_that_is_refused_is_not_sent_again(played: Path, serve: Serve) -> None:
    server = serve(Status(400, '"auto" tool choice requires\n--enable-auto-tool-choice'))
    fails(played, server, "HTTP 400 .*--enable-auto-tool-choice")
    assert len(server.requests) == 1


def test_a_cap_that_does_not_fit_becomes_what_is_left(played: Path, serve: Serve) -> None:
    full = Status(400, "This model's maximum context length is 32768 tokens")
    server = serve(full, submit(SNIPPETS))
    found, _ = propose(played, server)
    assert len(found) == 1 and "max_tokens" not in server.requests[1]
    fails(played, serve(full), "maximum context length")


@pytest.mark.parametrize(
    ("code", "why"), [(401, "OPENAI_API_KEY"), (403, "OPENAI_API_KEY"), (404, "the URL in --prop")]
)
def test_what_the_user_must_mend_stops_the_search(tmp_path: Path, serve: Serve, code: int, why: str) -> None:
    server = serve(Status(code, f"no such {KEY}"))
    with pytest.raises(UserError, match=why) as caught:
        run_search(tmp_path, agent(server), SearchSettings(rounds=1, candidates=1, tasks=6, backoff=0))
    assert len(server.requests) == 1 and KEY not in str(caught.value)


def test_a_conversation_that_outgrows_the_context_goes_on_without_its_oldest_results(
    played: Path, serve: Serve
) -> None:
    brief = len(system_prompt("search-qa"))
    full = "the request exceeds the available context size"

    def say(body: dict[str, Any]) -> Any:
        if sum(len(m["content"]) for m in body["messages"]) > brief + 6000:
            return Status(400, full)
        path = f"candidates/{H0.hash}/harness.py"
        return use("read", path=path) if len(body["messages"]) < 16 else submit(SNIPPETS)

    server = serve(say)
    found, proposer = propose(played, server)
    assert [p.source for p in found] == [SNIPPETS]
    last = [m["content"] for m in server.requests[-1]["messages"] if m["role"] == "tool"]
    assert last[0] == LEFT_OUT and "def run(" in last[-1] and len(last) == 7
    refused = [line for line in proposer.exchanges if full in line]
    assert 1 <= len(refused) < 7
    fails(played, serve(Status(400, full)), full)


def test_a_service_that_falls_silent_or_talks_for_ever(played: Path, serve: Serve) -> None:
    begun = time.monotonic()
    fails(played, serve(HANG), "nothing was heard for 0.3 s", limits=Limits(silence=0.3, retries=1, backoff=0))
    late = time.monotonic() + 0.4
    slow = serve(lambda body: time.sleep(max(0, late - time.monotonic())) or use("list_candidates"))
    fails(played, slow, "limit of 0.005 minutes", limits=Limits(minutes=0.005))
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize(
    ("answer", "why", "turns"),
    [
        (completion({"role": "assistant", "content": None, "refusal": "I can't."}), "refused: I can't", 1),
        (completion("", "content_filter"), "refused: no reason given", 1),
        (completion("On and on", "length"), "3 answers in a row were cut off", 3),
        (completion("Nothing is left."), "3 answers in a row called no tool", 3),
        (completion(""), "called no tool", 3),
    ],
    ids=range(5),
)
def test_answers_that_lead_nowhere_end_in_one_line_and_are_paid(
    played: Path, serve: Serve, answer: Any, why: str, turns: int
) -> None:
    server = serve(answer)
    proposer = fails(played, server, why)
    assert len(server.requests) == turns
    assert proposer.cost.sampled_tokens == turns * 4


@pytest.mark.parametrize(
    ("limits", "why"),
    [(Limits(turns=3), "3 answers"), (Limits(tokens=70), "70 tokens"), (Limits(dollars=7e-5), "7e-05 dollars")],
)
def test_a_conversation_is_bounded(played: Path, serve: Serve, limits: Limits, why: str) -> None:
    server = serve(use("list_candidates"))
    fails(played, server, f"limit of {why}", limits=limits, price="@1/1")
    assert len(server.requests) == 3


def test_what_it_costs_must_be_known_where_it_costs_something(played: Path, serve: Serve) -> None:
    server = serve(completion("hm", usage=None))
    fails(played, server, "without usage", price="@1/1")
    assert len(server.requests) == 1


# ---------------------------------------------------------------------------------------------- tool calls


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (("bash", "{}"), "there is no tool 'bash'"),
        (("", "{}"), "there is no tool ''"),
        (("read", '{"path": "arch'), "no JSON object"),
        (("read", "[1]"), "list in place of an object"),
        (("read", '"path"'), "str in place of an object"),
        (("read", "[" * 100_000), "no JSON object"),
        (("read", '{"path": "\\ud800"}'), "no file '?'"),
        (("read", ""), "missing required field `path`"),
    ],
    ids=range(8),
)
def test_a_malformed_tool_call_is_answered_and_stops_nothing(
    played: Path, serve: Serve, call: tuple[str, str], why: str
) -> None:
    server = serve(called(call, ("list_candidates", "")), submit(SNIPPETS))
    found, _ = propose(played, server)
    refused, listed = shown(server.requests[1])
    assert refused.startswith("Error: ") and why in refused
    assert H0.hash in listed
    assert [p.source for p in found] == [SNIPPETS]


def test_a_call_that_is_cut_off_is_not_made_and_line_breaks_in_strings_are_taken(played: Path, serve: Serve) -> None:
    cut = completion(submit(TURNS), "length")
    whole = json.dumps({"source": SNIPPETS, "hypothesis": "x", "parents": [], "axes": []})
    raw = re.sub(r"(?<!\\)\\n", "\n", whole)
    assert raw != whole
    server = serve(cut, called(("submit", raw)))
    found, _ = propose(played, server)
    assert "cut off" in shown(server.requests[1])[0]
    assert [p.source for p in found] == [SNIPPETS]


def test_calls_without_ids_or_indices_are_told_apart() -> None:
    streamed, whole = ChatAnswer(), ChatAnswer()
    a, b = ({"function": {"name": "read", "arguments": json.dumps({"path": p})}} for p in "ab")
    more = {"function": {"arguments": ""}}
    for delta in ([{"id": "x", **a}], [more], [{"id": "y", **b}]):
        streamed.take(json.dumps({"choices": [{"delta": {"tool_calls": delta}}]}))
    as_object = {"function": {"name": "read", "arguments": {"path": "b"}}}
    whole.take(json.dumps({"choices": [{"message": {"tool_calls": [a, as_object]}, "finish_reason": "stop"}]}))
    for answer in (streamed, whole):
        assert [c.input for c in answer.calls] == [{"path": "a"}, {"path": "b"}]
        assert len({c.id for c in answer.calls}) == 2
    assert whole.finished and not streamed.finished


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(
        st.sampled_from(["choices", "delta", "message", "tool_calls", "function", "arguments", "index", "id", "usage"]),
        inner, max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@given(JSON | st.lists(JSON, max_size=2).map(lambda deltas: {"choices": [{"delta": d} for d in deltas]}))
def test_a_stream_of_anything_is_a_stream_error_or_an_answer(event: Any) -> None:
    answer = ChatAnswer()
    try:
        answer.take(json.dumps(event))
    except StreamError as error:
        assert len(str(error)) < 400
        return
    json.dumps([answer.sent_back(), answer.received, [c.name for c in answer.calls]]).encode()


# ---------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("openai", "expected openai:MODEL@http://HOST:PORT/v1"),
        ("openai:", "expected openai:MODEL@http://HOST:PORT/v1"),
        ("openai:m@http://127.0.0.1:9/v1", "start the server, or mend the URL in --proposer"),
        ("openai:m@http://[::1/v1", "the URL in --proposer"),
        ("openai:m", "the price of 'm' is not known"),
    ],
)
def test_a_mistake_in_the_proposer_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, spec: str, expected: str, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr("whale_envs.services.time.sleep", lambda seconds: None)
    assert expected in one_line(capsys, "search", "--proposer", spec)
    assert list(tmp_path.iterdir()) == []


def test_a_key_or_a_model_that_is_missing_is_said_before_anything_is_spent(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve("hello", owner="vllm")
    with pytest.raises(UserError, match=r"unknown model .*did you mean 'm'"):
        load_proposer(f"openai:mm@{server.base}", DOMAIN)
    assert load_proposer(f"openai:m@0.1/0.2@{server.base}", DOMAIN).name == "openai"
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(UserError, match="OPENAI_API_KEY is not set: set it to a key, or use --proposer mutation"):
        load_proposer("openai:m@1/2", DOMAIN)
