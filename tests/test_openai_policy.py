"""The policy over an endpoint: what is sent, what is read, and that each failure stays where it belongs."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from email.utils import formatdate
from typing import Any

import pytest
from chat_server import CUT, HANG, KEY, ChatServer, Status, completion
from loopback import JsonHandler, Loopback

from whale_envs.episode import Reply
from whale_envs.errors import UserError
from whale_envs.harness.helpers import Ask, user
from whale_envs.services import Endpoint, Patience
from whale_train.policies import PolicyError, Request, Sampling
from whale_train.policies.load import load_policy
from whale_train.policies.openai import FAILURES, OpenAIPolicy, ThreadSampler

QUICK = Patience(retries=2, backoff=0.0, max_wait=1.0, silence=20.0, total=60.0)
Serve = Callable[..., ChatServer]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Starts servers; the environment has a key and no proxy."""
    started: list[ChatServer] = []
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)

    def start(say: Any = lambda body: "hello", *args: Any, **options: Any) -> ChatServer:
        server = ChatServer(say, *args, **options)
        started.append(server)
        return server.__enter__()

    yield start
    for server in started:
        server.__exit__()


def policy_of(server: ChatServer, patience: Patience = QUICK, **options: Any) -> OpenAIPolicy:
    return OpenAIPolicy("m", server.base, patience=patience, **options)


def asking(text: str = "q", max_tokens: int = 64, seed: int = 5, **options: Any) -> Request:
    return Request(Ask([user(text)], **options), seed, max_tokens)


def one(policy: OpenAIPolicy, request: Request | None = None) -> Reply:
    (reply,) = policy.generate([request or asking()])
    assert isinstance(reply, Reply), reply
    return reply


def failed(policy: OpenAIPolicy, request: Request | None = None) -> str:
    (error,) = policy.generate([request or asking()])
    assert isinstance(error, PolicyError), error
    assert "\n" not in str(error) and KEY not in str(error)
    return str(error)


# what is sent, and what is read


def test_a_reply_has_its_text_its_tokens_and_its_cost(serve: Serve) -> None:
    server = serve(lambda body: completion("hello", "length"))
    assert one(policy_of(server, price=(1.0, 5.0))) == Reply("hello", "length", counted=(20, 4), dollars=40 / 1e6)
    assert one(policy_of(server)).dollars == 0.0
    assert set(server.keys) == {f"Bearer {KEY}"}


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"role": "assistant", "content": None}, ""),
        ({"role": "assistant", "content": None, "refusal": "I can't."}, "I can't."),
        ({"role": "assistant", "content": "6", "reasoning_content": "3 + 3"}, "<think>\n3 + 3\n</think>\n\n6"),
        ({"role": "assistant", "content": None, "reasoning": "so"}, "<think>\nso\n</think>\n\n"),
        ({"role": "assistant", "content": "6", "reasoning": {"odd": 1}, "annotations": []}, "6"),
    ],
)
def test_all_that_a_message_says_is_in_the_text(serve: Serve, message: Any, text: str) -> None:
    assert one(policy_of(serve(lambda body: message))).text == text


def test_sampling_is_spelled_out_as_far_as_the_engine_takes_it(serve: Serve) -> None:
    sampling = Sampling(0.7, 40, 0.9)
    request = asking(max_tokens=9, seed=2**47 + 3, stop=("</a>",), template_kwargs={})
    bodies = {}
    for owner in ("vllm", "llamacpp", "somebody", None):
        server = serve(owner=owner)
        policy = policy_of(server, sampling=sampling)
        one(policy, request)
        (bodies[owner],) = server.requests
        assert policy.sampling.top_k == (40 if owner in ("vllm", "llamacpp") else 0)
    plain = {
        "model": "m",
        "messages": [{"role": "user", "content": "q"}],
        "max_tokens": 9,
        "seed": (2**47 + 3) % 2**31,
        "temperature": 0.7,
        "top_p": 0.9,
    }
    assert bodies["somebody"] == bodies[None] == plain
    assert bodies["llamacpp"] == plain | {"top_k": 40, "min_p": 0.0, "repetition_penalty": 1.0}
    ids = {"return_token_ids": True, "logprobs": True, "top_logprobs": 0}
    assert bodies["vllm"] == bodies["llamacpp"] | ids | {"stop": ["</a>"], "include_stop_str_in_output": True}


def test_a_stop_string_ends_the_text_and_stays_in_it_on_every_engine(serve: Serve) -> None:
    policy = policy_of(serve(lambda body: completion("<a>1</a> and <b>2</b>", "length")))
    reply = one(policy, asking(stop=("</b>", "</a>")))
    assert (reply.text, reply.finish_reason) == ("<a>1</a>", "stop")
    reply = one(policy, asking(stop=("no",)))
    assert (reply.text, reply.finish_reason) == ("<a>1</a> and <b>2</b>", "length")


def test_template_arguments_go_where_there_is_a_template(serve: Serve) -> None:
    server = serve(owner="vllm")
    one(policy_of(server), asking(template_kwargs={"enable_thinking": False}))
    assert server.requests[0]["chat_template_kwargs"] == {"enable_thinking": False}
    assert "template_kwargs" in failed(policy_of(serve()), asking(template_kwargs={"enable_thinking": False}))


def test_vllm_gives_token_ids_and_log_probabilities(serve: Serve) -> None:
    def say(body: Any) -> Any:
        answer = completion("hello", prompt_token_ids=[1, 2, 3])
        tokens = {"content": [{"token": "h", "logprob": -0.5}, {"token": "", "logprob": 0.0}]}
        answer["choices"][0] |= {"token_ids": [7, 8], "logprobs": tokens}
        return answer

    reply = one(policy_of(serve(say, owner="vllm")))
    assert (reply.prompt_ids, reply.completion_ids, reply.logprobs) == ([1, 2, 3], [7, 8], [-0.5, 0.0])
    older = one(policy_of(serve(owner="vllm")))
    assert (older.prompt_ids, older.completion_ids, older.logprobs) == (None, None, None)


def test_a_cap_that_does_not_fit_becomes_what_is_left(serve: Serve) -> None:
    def say(body: Any) -> Any:
        return Status(400, "This model's maximum context length is 50 tokens.") if "max_tokens" in body else "fits"

    assert one(policy_of(serve(say))).text == "fits"
    server = serve(lambda body: Status(400, "This model's maximum context length is 50 tokens."))
    assert "maximum context length" in failed(policy_of(server))
    assert len(server.requests) == 2


def test_the_hash_tells_models_addresses_and_sampling_apart(serve: Serve) -> None:
    first, second = serve(), serve()
    made = [
        policy_of(first),
        policy_of(second),
        policy_of(first, sampling=Sampling(0.5)),
        OpenAIPolicy("other", first.base, patience=QUICK),
    ]
    assert len({policy.weights_hash for policy in made}) == 4
    assert policy_of(first).weights_hash == made[0].weights_hash == policy_of(first, price=(1, 2)).weights_hash


# many at once


def test_requests_run_at_once_up_to_the_number_and_replies_go_to_theirs(serve: Serve) -> None:
    def say(body: Any) -> str:
        time.sleep(0.02)
        return body["messages"][0]["content"].upper()

    server = serve(say)
    replies = policy_of(server, max_batch=8).generate([asking(f"q{n}") for n in range(40)])
    assert [r.text for r in replies if isinstance(r, Reply)] == [f"Q{n}" for n in range(40)]
    assert 1 < server.most_open <= 8


def test_a_straggler_holds_up_nobody(serve: Serve) -> None:
    server = serve(lambda body: server.ended.wait(30) and "" if body["messages"][0]["content"] == "slow" else "quick")
    sampler = policy_of(server).sampler()
    _, *quick = sampler.submit([asking(text) for text in ("slow", "a", "b", "c")])
    ended = dict(sampler.collect())
    while len(ended) < 3:
        ended.update(sampler.collect())
    assert set(ended) == set(quick)
    (more,) = sampler.submit([asking("d")])
    assert [ticket for ticket, _ in sampler.collect()] == [more]
    sampler.close()  # and waits for nobody


def test_nothing_is_collected_where_nothing_is_on_its_way(serve: Serve) -> None:
    sampler = policy_of(serve()).sampler()
    assert sampler.collect() == [] and sampler.submit([]) == []
    sampler.close()


def test_a_bug_in_a_thread_is_no_failed_request() -> None:
    def answer(request: Request, closed: threading.Event) -> Reply:
        raise ZeroDivisionError

    sampler = ThreadSampler(answer, 2)
    sampler.submit([asking()])
    with pytest.raises(ZeroDivisionError):
        sampler.collect()
    sampler.close()


# failures


NONSENSE = [
    b"",
    b"nonsense",
    b"null",
    b"[]",
    b"{}",
    b"\xff\xfe",
    b'{"choices": []}',
    b'{"choices": [{}]}',
    b'{"choices": [{"message": {"content": 5}, "finish_reason": "stop"}]}',
    b'{"choices": [{"message": {}, "finish_reason": "stop", "token_ids": [-1]}], "prompt_token_ids": [1]}',
    b'{"choices": [{"message": {}, "finish_reason": "stop"}], "usage": {"prompt_tokens": -9, "completion_tokens": 1}}',
]
BROKEN = [
    *(Status(code) for code in (408, 409, 429, 500, 502, 503, 529)),
    Status(429, headers={"retry-after": "0"}),
    Status(429, headers={"retry-after": "soon"}),
    Status(503, headers={"retry-after": formatdate(0, usegmt=True)}),
    Status(500, body=b"<html>"),
    *(Status(200, body=body) for body in NONSENSE),
    CUT,
]


def test_what_asking_again_can_mend_is_asked_again(serve: Serve) -> None:
    waiting: list[Any] = []
    server = serve(lambda body: waiting.pop() if waiting else "hello")
    policy = policy_of(server)
    for broken in BROKEN:
        waiting.append(broken)
        assert one(policy).text == "hello", broken
    assert len(server.requests) == 2 * len(BROKEN)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (Status(429, f"slow\ndown {KEY}"), "HTTP 429"),
        (Status(500, "boom"), "HTTP 500 .*boom"),
        (Status(200, body=b"nonsense"), "no chat completion"),
        (Status(200, body=b'{"choices": []}'), "no choices"),
        (CUT, "RemoteProtocolError|closed"),
    ],
)
def test_a_request_that_is_given_up_fails_alone_and_says_why(serve: Serve, broken: Any, said: str) -> None:
    server = serve(lambda body: broken if body["messages"][0]["content"] == "bad" else "good")
    replies = policy_of(server).generate([asking("a"), asking("bad"), asking("b")])
    assert [type(reply) for reply in replies] == [Reply, PolicyError, Reply]
    assert "asked 3 times" in str(replies[1]) and "\n" not in str(replies[1]) and KEY not in str(replies[1])
    assert re.search(said, str(replies[1])), replies[1]
    assert len(server.requests) == 5


def test_a_server_that_says_nothing_fails_its_request_in_bounded_time(serve: Serve) -> None:
    server = serve(lambda body: HANG)
    policy = policy_of(server, replace(QUICK, silence=0.2, retries=1))
    assert "nothing was heard for 0.2 s (asked 2 times)" in failed(policy)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (Status(400, "no such parameter"), "no such parameter"),
        (Status(422), "HTTP 422"),
        (completion("", "content_filter"), "content_filter"),
        (completion("", "abort"), "abort"),
        (completion("x" * 700_000), "larger than"),
    ],
)
def test_what_is_refused_is_not_asked_again_and_counts_against_no_one_else(
    serve: Serve, broken: Any, said: str
) -> None:
    server = serve(lambda body: broken)
    policy = policy_of(server)
    for _ in range(2 * FAILURES):
        assert said in failed(policy)
    assert len(server.requests) == 2 * FAILURES


def test_a_cost_that_is_not_known_is_refused(serve: Serve) -> None:
    server = serve(lambda body: completion("hello", usage=None))
    assert "without usage" in failed(policy_of(server, price=(1.0, 2.0)))
    assert one(policy_of(server)).counted is None


def test_what_cannot_be_asked_fails_its_request(serve: Serve) -> None:
    server = serve()
    odd = Request(Ask([{"role": "assistant", "content": "", "tool_calls": [5]}]), 0, 4)
    assert "a tool call is" in failed(policy_of(server), odd)
    assert "max_tokens is 0" in failed(policy_of(server), asking(max_tokens=0))
    assert server.requests == []


def test_a_rate_limit_holds_for_all_requests(serve: Serve) -> None:
    limited = [Status(429, headers={"retry-after": "1"})]
    server = serve(lambda body: limited.pop() if limited else "hello")
    policy = policy_of(server)
    sampler = policy.sampler()
    sampler.submit([asking()])
    while not server.times or limited:
        time.sleep(0.01)
    time.sleep(0.2)  # the answer has arrived, and the first request waits
    sampler.submit([asking()] * 3)
    ended = sampler.collect()
    while len(ended) < 4:
        ended += sampler.collect()
    assert all(isinstance(reply, Reply) for _, reply in ended)
    assert min(server.times[1:]) - server.times[0] >= 0.9
    sampler.close()


def test_a_service_may_not_ask_to_wait_for_days(serve: Serve) -> None:
    server = serve(lambda body: Status(429, headers={"retry-after": "86400"}))
    assert "HTTP 429" in failed(policy_of(server, replace(QUICK, max_wait=0.05)))
    server = serve(lambda body: Status(503, headers={"retry-after": "86400"}))
    assert "asked 1 times" in failed(policy_of(server, replace(QUICK, max_wait=1000.0)))  # more than `total`


def test_closing_ends_a_wait(serve: Serve) -> None:
    server = serve(lambda body: Status(429, headers={"retry-after": "600"}))
    before = set(threading.enumerate())
    sampler = policy_of(server, replace(QUICK, max_wait=600.0, total=6000.0)).sampler()
    sampler.submit([asking()] * 3)
    while len(server.times) < 1:
        time.sleep(0.01)
    sampler.close()
    for thread in set(threading.enumerate()) - before:
        if thread.daemon:  # the sampler's, and not the server's
            thread.join(30)
            assert not thread.is_alive()


def test_an_endpoint_that_is_down_stops_the_run_in_one_line(serve: Serve) -> None:
    server = serve(lambda body: Status(503))
    policy = policy_of(server)
    with pytest.raises(
        UserError, match=f"HTTP 503 .*{FAILURES} requests in a row: mend it, then run the same"
    ) as error:
        policy.generate([asking()] * 40)
    assert "\n" not in str(error.value) and KEY not in str(error.value)


def test_a_success_in_between_starts_the_count_anew(serve: Serve) -> None:
    server = serve(lambda body: Status(500) if body["messages"][0]["content"] == "bad" else "good")
    policy = policy_of(server, replace(QUICK, retries=0))
    for _ in range(FAILURES):
        for text in ("bad", "bad", "good"):
            policy.generate([asking(text)])


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (Status(401, f"bad {KEY}"), "OPENAI_API_KEY: set a valid one"),
        (Status(402), "billing"),
        (Status(403), "set another"),
        (Status(404, "The model `m` does not exist."), "does not exist.*see the URL in --policy"),
        (Status(429, body=b'{"error": {"message": "empty", "code": "insufficient_quota"}}'), "billing"),
    ],
)
def test_what_the_user_must_mend_is_said_at_once(serve: Serve, status: Status, said: str) -> None:
    server = serve(lambda body: status)
    with pytest.raises(UserError, match=said) as error:
        policy_of(server).generate([asking()])
    assert "\n" not in str(error.value) and KEY not in str(error.value)
    assert len(server.requests) == 1


# when it is made


def refused(spec: str, said: str) -> None:
    with pytest.raises(UserError, match=said) as error:
        load_policy(spec, "search-qa")
    assert "\n" not in str(error.value) and KEY not in str(error.value)


def test_a_policy_is_named_by_model_url_and_price(serve: Serve) -> None:
    server = serve(models=("org/m-7b:free@2", "m"))
    for spec, model, price in (
        (f"openai:org/m-7b:free@2@{server.base}", "org/m-7b:free@2", (0, 0)),
        (f"openai:m@0.25/2@{server.base}", "m", (0.25, 2)),
        (f"openai:m@.5/10@{server.base}/", "m", (0.5, 10)),
    ):
        policy = load_policy(spec, "search-qa")
        assert isinstance(policy, OpenAIPolicy)
        assert (policy._endpoint.model, policy._price, policy.name) == (model, price, f"openai:{model}")
        assert isinstance(policy.generate([asking()])[0], Reply)
        assert server.requests[-1]["model"] == model


def test_the_url_and_key_may_come_from_the_environment(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve()
    monkeypatch.setenv("OPENAI_BASE_URL", server.base)
    monkeypatch.delenv("OPENAI_API_KEY")
    (reply,) = load_policy("openai:m", "search-qa").generate([asking()])
    assert isinstance(reply, Reply)
    monkeypatch.delenv("OPENAI_BASE_URL")
    refused("openai:m@1/2", "OPENAI_API_KEY is not set: set it to a key, or choose --policy tiny")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    refused("openai:gpt-5", "the price of 'gpt-5' is not known.*openai:gpt-5@0.25/2")


@pytest.mark.parametrize("spec", ["openai:", "openai:@", "openai:@1/2"])
def test_a_spec_without_a_model_is_one_line(serve: Serve, spec: str) -> None:
    refused(spec, "expected|unknown policy|price")


@contextlib.contextmanager
def dripping(method: str) -> Iterator[str]:
    """The base URL of a server that answers one method with a byte now and then, and the other with 404."""

    def drip(self: JsonHandler) -> None:
        self.send_response(200)
        self.end_headers()
        with contextlib.suppress(OSError):
            while not ended.wait(0.05):
                self.wfile.write(b" ")

    def missing(self: JsonHandler) -> None:
        self.send_error(404)

    ended = threading.Event()
    answers = {"do_GET": missing, "do_POST": missing, f"do_{method}": drip}
    with Loopback(type("Drips", (JsonHandler,), answers)) as server:
        try:
            yield f"{server.url}/v1"
        finally:
            ended.set()


def test_a_list_of_models_that_comes_byte_by_byte_is_not_waited_for(serve: Serve) -> None:
    with (
        dripping("GET") as url,
        pytest.raises(UserError, match=r"not whole after 0\.5 s: start the server, or mend the URL"),
    ):
        OpenAIPolicy("m", url, patience=replace(QUICK, total=0.5))


def test_a_reply_that_comes_byte_by_byte_is_given_up(serve: Serve) -> None:
    with dripping("POST") as url:
        policy = OpenAIPolicy("m", url, patience=replace(QUICK, total=0.5))
        assert failed(policy).endswith("an answer was not whole after 0.5 s")


def test_a_key_that_is_a_stand_in_garbles_no_message() -> None:
    def line(key: str) -> str:
        return Endpoint("m", "http://x/v1", key, "OPENAI_API_KEY", "OPENAI_BASE_URL").line("expected sk-1234567 of x")

    assert line("x") == line("") == line("none") == "m at http://x/v1: expected sk-1234567 of x"
    assert line("sk-1234567") == "m at http://x/v1: expected (the key) of x"


def test_an_endpoint_that_cannot_be_used_is_heard_of_at_once(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whale_train.policies.openai.PATIENCE", QUICK)
    server = serve(owner="vllm", models=("Qwen/Qwen3-8B", "b"))
    refused(
        f"openai:Qwen/qwen3-8B@{server.base}", "unknown model of http.* expected one of Qwen/Qwen3-8B, b; did you mean"
    )
    server.models = Status(401)
    refused(f"openai:m@{server.base}", "OPENAI_API_KEY: set a valid one")
    server.models = Status(503)
    refused(f"openai:m@{server.base}", "HTTP 503.*asked 3 times.*start the server, or mend the URL in --policy")
    server.models = Status(200, body=b"<html>hello</html>")
    refused(f"openai:m@{server.base}", "mend the URL in --policy")
    server.models = Status(404)
    assert load_policy(f"openai:m@{server.base}", "search-qa").name == "openai:m"
    server.__exit__()
    refused(f"openai:m@{server.base}", "refused.*start the server, or mend the URL in --policy")
