"""The Anthropic proposer against a server that speaks its API: a whole search, every failure, and what it is told."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from agent_runs import DOMAIN, FAST, H0, SNIPPETS, TURNS, played_archive, results, run_search
from anthropic_server import KEY, Answer, Broken, MessagesServer, Status, call, text, thinking
from hypothesis import given
from hypothesis import strategies as st
from search_runs import files

from whale_envs import UserError
from whale_envs.domains import DOMAINS, load_domain
from whale_envs.harness import helpers
from whale_envs.harness.load import load_harness
from whale_envs.tools.retrieval import MAX_PASSAGES
from whale_train.ledger import Ledger
from whale_train.meta_harness.archive import Archive
from whale_train.meta_harness.evaluate import split_tasks
from whale_train.meta_harness.proposers import check_proposer, load_proposer
from whale_train.meta_harness.proposers.agent import AgentProposer, Limits
from whale_train.meta_harness.proposers.anthropic import PRICES, AnthropicService, anthropic_service
from whale_train.meta_harness.proposers.archive_tools import TOOLS, Desk, ToolInputError, tool_schemas
from whale_train.meta_harness.proposers.base import Cost, ProposerError, ProposerSpent
from whale_train.meta_harness.proposers.brief import BRIEFS, system_prompt
from whale_train.meta_harness.proposers.messages_stream import MessagesAnswer
from whale_train.meta_harness.proposers.service import StreamError
from whale_train.meta_harness.search import SearchSettings

ONCE = Answer([call("list_candidates", {})])


def agent(limits: Limits = FAST) -> AgentProposer:
    return AgentProposer(AnthropicService(), DOMAIN, limits)


def submit(source: str, parent: str = H0.hash, **more: Any) -> dict[str, Any]:
    return call(
        "submit", {"source": source, "hypothesis": "More is shown.", "parents": [parent], "axes": ["view"], **more}
    )


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return played_archive(tmp_path_factory.mktemp("played"))


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., MessagesServer]]:
    """Starts a server for a script and points the SDK at it; at the end, no request may have been wrong."""
    started: list[MessagesServer] = []
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)

    def start(*script: Any) -> MessagesServer:
        server = MessagesServer(list(script) or [ONCE])
        started.append(server)
        server.__enter__()
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        return server

    yield start
    for server in started:
        server.__exit__()
    assert [w for s in started for w in s.wrong] == []


def propose(played: Path, count: int = 1, limits: Limits = FAST) -> tuple[list[Any], AgentProposer]:
    proposer = agent(limits)
    return proposer.propose(Archive(played, "search-qa"), count, 0), proposer


def fails(played: Path, match: str, kind: type[Exception] = ProposerError, limits: Limits = FAST) -> AgentProposer:
    """A proposal that fails with one line that says why; the proposer, for what it cost."""
    proposer = agent(limits)
    with pytest.raises(kind, match=match) as caught:
        proposer.propose(Archive(played, "search-qa"), 1, 0)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500
    assert KEY not in str(caught.value)
    return proposer


# ---------------------------------------------------------------------------------------------- a whole search


def test_a_search_round_with_it_reads_submits_mends_and_ends_in_scored_candidates(
    tmp_path: Path, serve: Callable[..., MessagesServer], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)  # of the SDK and of its HTTP client too
    seen: list[str] = []

    def look(request: dict[str, Any]) -> Answer:
        (_, shown), *_ = results(request)
        seen.append(shown)
        task = re.search(r"^(\S+)  0  ", shown, re.MULTILINE)
        assert task
        return Answer([call("episode", {"candidate": H0.hash, "task": task[1]}), call("grep", {"pattern": "TURNS ="})])

    def first(request: dict[str, Any]) -> Answer:
        seen.extend(shown for _, shown in results(request))
        return Answer([text("Post-mortem: the head is too short."), submit(SNIPPETS + "\nrun(\n"), submit(SNIPPETS)])

    def second(request: dict[str, Any]) -> Answer:
        seen.extend(shown for _, shown in results(request))
        return Answer([submit(TURNS)])

    server = serve(
        Answer([thinking("Let me look."), call("read", {"path": f"candidates/{H0.hash}/harness.py"})]),
        Answer([text("Now what came of it."), call("outcomes", {"candidate": H0.hash})]),
        look, first, second, Status(500),
    )  # fmt: skip
    proposer = agent()
    archive = run_search(tmp_path, proposer, SearchSettings(rounds=1, candidates=2, tasks=6, backoff=0, refills=0))

    tried = archive.rounds[0].tried
    assert [archive.source(t.hash) for t in tried] == [SNIPPETS, TURNS]
    assert archive.rounds[0].note == ""
    assert all(t.gate or t.mean is not None for t in tried)
    assert archive[tried[0].hash].parents == [H0.hash] and archive[tried[0].hash].axes == ["view"]
    assert "does not parse" in seen[3] and seen[4] == "taken: 1 of 2"
    assert "[user] Question:" in seen[1] and "harness.py:" in seen[2]

    one = server.requests[0]
    assert one["model"] == "claude-opus-4-7"
    assert all("cache_control" in part for part in (one, one["system"][-1], one["tools"][-1]))
    assert [r["system"] for r in server.requests] == [one["system"]] * 5, "or no cache would hold it"
    assert server.requests[-1]["messages"][: len(one["messages"])] == one["messages"]

    paid = Ledger(tmp_path / "ledger.jsonl").by_kind()["proposer"]
    assert (paid.prompt_tokens, paid.sampled_tokens) == (5 * 6000, 5 * 400)
    assert paid.dollars == pytest.approx(5 * (1000 * 5 + 2000 * 6.25 + 3000 * 0.5 + 400 * 25) / 1e6)

    log = (tmp_path / "archive/exchanges/search-1-0.jsonl").read_text().splitlines()
    exchanges = [json.loads(line) for line in log]
    assert len(exchanges) == 5
    said = [m for e in exchanges for m in e["sent"]]
    assert said == server.requests[-1]["messages"], "each message once"
    assert exchanges[0]["request"]["system"] == one["system"]
    assert exchanges[-1]["received"][0]["input"]["source"] == TURNS

    everything = "".join(files(tmp_path).values()) + caplog.text
    assert KEY not in everything


def test_what_it_sends_holds_nothing_of_the_shadow_or_the_test_set(
    played: Path, serve: Callable[..., MessagesServer]
) -> None:
    everything = [call("grep", {"pattern": "question"}), call("read", {"path": "."}), call("list_candidates", {})]
    server = serve(Answer(everything), Answer([call("outcomes", {"candidate": H0.hash})]), Answer([submit(SNIPPETS)]))
    propose(played)
    domain = DOMAIN
    _, shadow = split_tasks(domain.splits.harness, 0.25, 6)
    sent = set(re.findall(r"mini-\d+", json.dumps(server.requests)))
    assert {t.id for t in split_tasks(domain.splits.harness, 0.25, 6)[0]} <= sent
    assert not {t.id for t in [*shadow, *domain.splits.test]} & sent


# ---------------------------------------------------------------------------------------------- failures


def test_what_asking_again_mends_is_asked_again(played: Path, serve: Callable[..., MessagesServer]) -> None:
    server = serve(
        Status(429, "rate_limit_error", headers={"retry-after": "0"}),
        Status(529, "overloaded_error", headers={"retry-after": "Mon, 30 Nov 2026 00:00:00 GMT"}),
        Answer([call("list_candidates", {})]),
        Broken("cut", 5), Broken("error"), Answer([submit(SNIPPETS)]),
    )  # fmt: skip
    found, proposer = propose(played)
    assert [p.source for p in found] == [SNIPPETS]
    assert len(server.requests) == 6
    failures = [json.loads(line)["failure"] for line in proposer.exchanges]
    assert [bool(f) for f in failures] == [True, True, False, True, True, False]
    assert "HTTP 429" in failures[0] and "Overloaded" in failures[4]


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (Status(529, "overloaded_error"), r"HTTP 529 \(as the test wants it\) \(asked 3 times\)"),
        (Status(500, body=b"<html>\n\nno\n</html>"), "HTTP 500"),
        (Broken("cut"), "asked 3 times"),
        (Broken("end"), "the stream ended before the answer did"),
        (Broken("end", 0), "the stream ended before the answer did"),
        (Broken("nonsense"), "an event that the API does not have"),
        (Broken("error"), "overloaded_error: Overloaded"),
    ],
    ids=lambda value: getattr(value, "how", getattr(value, "code", None)) and str(value)[:24],
)
def test_what_goes_on_for_ever_ends_in_one_line(
    played: Path, serve: Callable[..., MessagesServer], reply: Any, why: str
) -> None:
    server = serve(reply)
    proposer = fails(played, why)
    assert len(server.requests) == 3
    assert json.loads(proposer.exchanges[-1])["submitted"] == 0


def test_a_request_that_the_service_refuses_is_not_sent_again(
    played: Path, serve: Callable[..., MessagesServer]
) -> None:
    server = serve(Status(400, "invalid_request_error", "prompt is\ntoo long"))
    fails(played, r"HTTP 400 \(prompt is too long\)")
    assert len(server.requests) == 1


@pytest.mark.parametrize(("code", "why"), [(401, "ANTHROPIC_API_KEY"), (403, "ANTHROPIC_API_KEY"), (404, "model")])
def test_what_the_user_must_mend_stops_the_search_at_once(
    tmp_path: Path, serve: Callable[..., MessagesServer], code: int, why: str
) -> None:
    server = serve(Status(code, "authentication_error", f"invalid x-api-key {KEY}"))
    with pytest.raises(UserError, match=why) as caught:
        run_search(tmp_path, agent(), SearchSettings(rounds=1, candidates=2, tasks=6, backoff=0))
    assert len(server.requests) == 1
    assert "\n" not in str(caught.value) and KEY not in str(caught.value)
    log = (tmp_path / "archive/exchanges/search-1-0.jsonl").read_text()
    assert f"HTTP {code}" in log and KEY not in log


def test_a_service_that_is_not_there(
    played: Path, serve: Callable[..., MessagesServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve()
    server._http.socket.close()
    fails(played, "Connection refused")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://localhost:port")
    with pytest.raises(UserError, match="ANTHROPIC_BASE_URL 'http://localhost:port'"):
        agent()


@pytest.mark.parametrize("how", ["silent", "pings"])
def test_a_service_that_falls_silent_or_only_pings(
    played: Path, serve: Callable[..., MessagesServer], how: str
) -> None:
    serve(Broken(how, 4))
    begun = time.monotonic()
    limits = Limits(silence=0.3, retries=1, backoff=0, minutes=0.02)
    fails(played, "nothing was heard for 0.3 s" if how == "silent" else "limit of 0.02 minutes", limits=limits)
    assert time.monotonic() - begun < 8


@pytest.mark.parametrize(
    ("answer", "why", "turns"),
    [
        (Answer([], "refusal", {"type": "refusal", "category": "cyber", "explanation": None}), "refused: cyber", 1),
        (Answer([text("I can't")], "refusal"), "refused: no reason given", 1),
        (Answer([text("On and on")], "max_tokens"), "3 answers in a row were cut off at 32,000 tokens", 3),
        (Answer([thinking("Hm", signature="")], "max_tokens"), "were cut off", 3),
        (Answer([text("Nothing is left to do.")]), "3 answers in a row called no tool", 3),
        (Answer([]), "called no tool", 3),
        (Answer([text("More")], "model_context_window_exceeded"), "outgrew", 1),
    ],
)
def test_answers_that_lead_nowhere_end_in_one_line_and_are_paid(
    played: Path, serve: Callable[..., MessagesServer], answer: Answer, why: str, turns: int
) -> None:
    server = serve(answer)
    proposer = fails(played, why)
    assert len(server.requests) == turns
    assert proposer.cost.sampled_tokens == turns * 400


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (Limits(turns=4), "limit of 4 answers"),
        (Limits(tokens=20_000), "limit of 20,000 tokens"),
        (Limits(dollars=0.1), "limit of 0.1 dollars"),
    ],
)
def test_a_conversation_is_bounded(
    played: Path, serve: Callable[..., MessagesServer], limits: Limits, why: str
) -> None:
    server = serve(ONCE)
    fails(played, why, ProposerSpent, limits)
    assert len(server.requests) == 4
    assert "Submit now" in str(server.requests[-1]["messages"][-1]) or limits.turns > 4


def test_a_conversation_that_ends_at_its_limits_is_not_begun_again_in_its_round(
    tmp_path: Path, serve: Callable[..., MessagesServer]
) -> None:
    server = serve(ONCE)
    archive = run_search(tmp_path, agent(Limits(turns=4)), SearchSettings(rounds=2, candidates=2, tasks=6, backoff=0))
    assert len(server.requests) == 2 * 4
    assert [r.tried for r in archive.rounds] == [[], []]
    assert all("it reached the limit of 4 answers" in r.note for r in archive.rounds)


def test_what_was_handed_in_before_a_failure_counts_and_the_round_says_so(
    tmp_path: Path, serve: Callable[..., MessagesServer]
) -> None:
    serve(Answer([submit(SNIPPETS)]), Answer([], "refusal"))
    config = SearchSettings(rounds=1, candidates=2, tasks=6, backoff=0, refills=0)
    archive = run_search(tmp_path, agent(), config)
    assert [archive.source(t.hash) for t in archive.rounds[0].tried] == [SNIPPETS]
    assert "gave 1 candidates of 2" in archive.rounds[0].note
    assert '"submitted": 1' in (tmp_path / "archive/exchanges/search-1-0.jsonl").read_text()


# ---------------------------------------------------------------------------------------------- tool calls

MALFORMED: dict[str, tuple[dict[str, Any], str]] = {
    "no such tool": (call("bash", {"command": "env"}), "there is no tool 'bash'"),
    "a field is missing": (call("read", {}), "missing required field `path`"),
    "a field too many": (call("read", {"path": ".", "mode": "w"}), "unknown field `mode`"),
    "another type": (call("read", {"path": 7}), "Expected `str`"),
    "line 0": (call("read", {"path": ".", "first": 0}), "Expected `int` >= 1"),
    "no JSON": (call("read", '{"path": "arch'), "no JSON object"),
    "no object": (call("read", "[1, 2]"), "list in place of an object"),
    "deep": (call("read", '{"path": ' + "[" * 100_000), "no JSON object"),
    "a lone surrogate": (call("read", '{"path": "\\ud800"}'), "no file '?'"),
    "no such candidate": (call("outcomes", {"candidate": "feedbeef"}), "no candidate 'feedbeef'"),
    "no such task": (call("episode", {"candidate": H0.hash, "task": "x"}), "has not played task 'x'"),
    "no such parent": (submit(SNIPPETS, parent="feedbeef"), "no candidate 'feedbeef'"),
    "bad pattern": (call("grep", {"pattern": "("}), "does not compile"),
    "never ending pattern": (call("grep", {"pattern": r"(.|.)*(.|.)*(.|.)*\n\n"}), "more than 1 s"),
    "no function": (submit("x = 1\n"), "no function `run(task, tools)`"),
    "names": (submit(SNIPPETS.replace("PASSAGES)", "PASAGES)")), "PASAGES"),
    "nesting": (submit(H0.source.replace("TURNS = 3", "TURNS = " + "+".join(["1"] * 5000))), "does not parse"),
    "nothing new": (submit("# Mine.\n" + H0.source), "the same program as"),
    "a draft that does not parse": (
        call("try_draft", {"source": "def run(", "candidate": H0.hash, "tasks": ["x"]}),
        "does not parse",
    ),
    "a draft on no such task": (
        call("try_draft", {"source": SNIPPETS, "candidate": H0.hash, "tasks": ["x"]}),
        "has not played task 'x'",
    ),
    "a draft on too many tasks": (
        call("try_draft", {"source": SNIPPETS, "candidate": H0.hash, "tasks": ["x"] * 6}),
        "length <= 5",
    ),
    "no hypothesis": (submit(SNIPPETS, hypothesis=""), "length >= 1"),
}


@pytest.mark.parametrize("what", sorted(MALFORMED))
def test_a_malformed_tool_call_is_answered_and_stops_nothing(
    played: Path, serve: Callable[..., MessagesServer], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr("whale_train.meta_harness.proposers.archive_tools.GREP_SECONDS", 1)
    bad, why = MALFORMED[what]
    server = serve(Answer([text("First"), bad, call("list_candidates", {})]), Answer([submit(SNIPPETS)]))
    found, _ = propose(played)
    (refused, said), (fine, listed) = results(server.requests[1])
    assert refused and why in said, said
    assert not fine and H0.hash in listed
    assert [p.source for p in found] == [SNIPPETS]


def test_a_tool_call_that_is_cut_off_is_not_made(played: Path, serve: Callable[..., MessagesServer]) -> None:
    whole = json.dumps(submit(SNIPPETS)["input"])
    cut = Answer([call("list_candidates", {}), call("submit", whole[: len(whole) // 2])], "max_tokens")
    even = Answer([submit(TURNS)], "max_tokens")  # that it happens to parse makes it no less cut
    server = serve(cut, even, Answer([submit(SNIPPETS)]))
    found, _ = propose(played)
    (ok, _), (refused, said) = results(server.requests[1])
    assert not ok and refused and "cut off" in said
    assert results(server.requests[2])[0][0]
    assert [p.source for p in found] == [SNIPPETS]


def test_more_candidates_than_wanted_and_the_same_twice(played: Path) -> None:
    desk = Desk(Archive(played, "search-qa"), 2, DOMAIN)
    given = submit(SNIPPETS)["input"]
    desk.use("submit", given)
    with pytest.raises(ToolInputError, match="just submitted"):
        desk.use("submit", given)
    desk.use("submit", submit(TURNS)["input"])
    with pytest.raises(ToolInputError, match="all 2 candidates are in"):
        desk.use("submit", submit(H0.source.replace("TURNS = 3", "TURNS = 5"))["input"])
    assert [p.source for p in desk.submitted] == [SNIPPETS, TURNS]


# ---------------------------------------------------------------------------------------------- what it is told


def test_the_brief_of_each_domain_is_there_and_says_what_holds(serve: Callable[..., MessagesServer]) -> None:
    for domain in DOMAINS:
        prompt = system_prompt(domain)
        assert (BRIEFS / f"{domain}.md").read_text() in prompt
        assert Path(helpers.__file__).read_text() in prompt
        world = load_domain(domain)
        for tool in world.world(world.splits.harness[0]).tools:
            assert f"`tools.{tool}(" in prompt
        for name in world.splits.harness[0].shown:
            assert name in (BRIEFS / f"{domain}.md").read_text()
        strong = load_harness("strong", domain).source
        assert not {line for line in strong.splitlines() if len(line) > 40} & set(prompt.splitlines())
    assert f"(1 to {MAX_PASSAGES})" in system_prompt("search-qa")
    assert system_prompt("toy") in system_prompt("math").replace((BRIEFS / "math.md").read_text(), "")
    assert [t["name"] for t in tool_schemas()] == list(TOOLS)


def test_the_key_and_the_model_are_checked_before_anything_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    for make in (AnthropicService, lambda: check_proposer("anthropic"), lambda: load_proposer("anthropic", DOMAIN)):
        with pytest.raises(UserError, match=r"set .*or use --proposer mutation"):
            make()
    for key in (" ", "sk-\nant", "sk-änt"):
        monkeypatch.setenv("ANTHROPIC_API_KEY", key)
        with pytest.raises(UserError, match="ANTHROPIC_API_KEY"):
            AnthropicService()
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY + "\n")
    assert load_proposer("anthropic", DOMAIN).cost == Cost()
    with pytest.raises(UserError, match=r"prices of \d{4}-\d\d.*did you mean 'claude-opus-4-7'.*@IN/OUT"):
        AnthropicService("claude-opus-4.7")
    for wrong in ("anthropic:", "anthropic:@5/25", "anthropic:claude-opus-4-7@5", "anthropic:claude-opus-4-7@a/b"):
        with pytest.raises(UserError, match="expected anthropic, anthropic:MODEL"):
            anthropic_service(wrong)


def test_tokens_are_paid_by_kind_and_by_the_price_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    usage = {"input_tokens": 1000, "cache_creation_input_tokens": 2000, "cache_read_input_tokens": 3000}
    for spec, into, out in (("anthropic:claude-sonnet-4-6", 3, 15), ("anthropic:claude-next@7/.5", 7, 0.5)):
        paid = anthropic_service(spec).cost({**usage, "output_tokens": 400})
        assert paid.dollars == pytest.approx((1000 * into + 2000 * into * 1.25 + 3000 * into * 0.1 + 400 * out) / 1e6)
        assert (paid.prompt_tokens, paid.sampled_tokens) == (6000, 400)
    assert all(0 < into < out for into, out in PRICES.values())


@given(st.text(max_size=200) | st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=5).map(
    lambda v: msgspec.json.encode({"type": "content_block_delta", "index": 0, "delta": v}).decode()
))  # fmt: skip
def test_a_stream_of_anything_is_a_stream_error_or_nothing(data: str) -> None:
    try:
        MessagesAnswer().take(data)
    except StreamError as error:
        assert len(str(error)) < 400
