"""What the chat API answers, read by itself: whatever it is, it becomes a reply or is refused."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from chat_server import called, completion
from hypothesis import given
from hypothesis import strategies as st

from whale_envs.episode import Reply
from whale_train.policies.chat_api import Dialect, Refused, read_reply

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
MESSAGES = st.fixed_dictionaries({}, optional={"content": JSON, "reasoning": JSON, "refusal": JSON, "tool_calls": JSON})
CHOICES = st.fixed_dictionaries(
    {"message": MESSAGES, "finish_reason": st.sampled_from(["stop", "length", "tool_calls", None, "x"])},
    optional={"token_ids": JSON, "logprobs": JSON},
)
ANSWERS = st.fixed_dictionaries(
    {"choices": st.lists(CHOICES, max_size=2)}, optional={"usage": JSON, "prompt_token_ids": JSON}
)


@given(ANSWERS | JSON, st.booleans())
def test_any_body_is_a_reply_or_is_refused(answer: Any, token_ids: bool) -> None:
    dialect = Dialect(extras=token_ids, token_ids=token_ids)
    for body in (json.dumps(answer).encode(), json.dumps(answer).encode()[:-1]):
        try:
            reply = read_reply(body, ["a"], dialect, (0.0, 0.0))
        except (ValueError, Refused):
            continue
        assert msgspec.json.decode(msgspec.json.encode(reply), type=Reply) == reply


@given(st.text(max_size=20), st.text(max_size=30) | JSON)
def test_any_call_is_read_or_stands_in_the_text(name: str, arguments: Any) -> None:
    message = {
        "content": "x",
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}],
    }
    reply = read_reply(json.dumps(completion(message, "tool_calls")).encode(), [], Dialect(), (0.0, 0.0))
    assert len(reply.tool_calls) + reply.text.count("<tool_call>") >= 1
    assert reply.text.startswith("x")


@pytest.mark.parametrize(
    "calls", [{}, {"x": 1}, 5, "x", [None], [{}], [{"function": None}], [{"function": {"name": 5, "arguments": "{}"}}]]
)
def test_what_is_no_call_at_all_stands_in_the_text_too(calls: Any) -> None:
    message = {"content": "x", "tool_calls": calls}
    reply = read_reply(json.dumps(completion(message)).encode(), [], Dialect(), (0.0, 0.0))
    assert (reply.tool_calls, reply.text.count("<tool_call>")) == ([], 1 if calls else 0)


@given(st.dictionaries(st.text(max_size=8), JSON, max_size=4))
def test_any_arguments_survive(arguments: dict[str, Any]) -> None:
    message = called(("f", json.dumps(arguments)))
    reply = read_reply(json.dumps(completion(message)).encode(), [], Dialect(), (0.0, 0.0))
    assert reply.tool_calls == [{"name": "f", "arguments": arguments}]
