"""Tool calls: what a chat template shows is read back, whatever the arguments; what is malformed stops nothing."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import trl
from hypothesis import example, given, settings
from hypothesis import strategies as st
from policy_models import tiny_model, tiny_tokenizer

from whale_envs.env import as_reply
from whale_envs.episode import Call, Reply
from whale_envs.harness.helpers import Ask, Message, tool, user
from whale_envs.prompts import Prompts
from whale_envs.tool_calls import FAMILIES, calls_of, linked, read_calls, write_call
from whale_train.policies.base import Request
from whale_train.policies.transformers import TransformersPolicy

#: Chat templates as their models ship them, from TRL's collection.
TEMPLATES = Path(trl.__file__).parent / "chat_templates"
FAMILY = {
    "qwen2_5": "hermes",
    "qwen3": "hermes",
    "qwen3_instruct_2507": "hermes",
    "qwen3_5_think": "qwen-xml",
    "qwen3_5_nothink": "qwen-xml",
}
SEARCH: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}, "k": {"type": "integer"}}},
    },
}
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,12}", fullmatch=True)
TEXT = (
    st.text(st.characters(codec="utf-8"), max_size=30)
    | st.sampled_from(["<tool_call>", "</tool_call>", "</function>", "</parameter>", "<think>", "</think>"])
    | st.sampled_from(["\n", " x\n", "    indented = 1\n\n", '"}', "None", "7"])
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


def prompts_of(template: str) -> Prompts:
    tokenizer = copy.deepcopy(tiny_tokenizer())
    tokenizer.chat_template = (TEMPLATES / f"{template}.jinja").read_text()
    return Prompts(tokenizer)


PROMPTS = {name: prompts_of(name) for name in FAMILY}


def kind_of(value: Any) -> str:
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return kinds.get(type(value), "null")


def schema_of(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    properties = {key: {"type": kind_of(value)} for key, value in arguments.items()}
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}


def written_by(prompts: Prompts, calls: list[dict[str, Any]]) -> str:
    """What the template shows of a reply that is nothing but these calls."""
    said = {"role": "assistant", "content": "", "tool_calls": calls}
    shown = prompts._render(linked([user("x"), said, tool("found")]), [SEARCH])
    start = shown.rindex("<|im_start|>assistant\n", 0, shown.rindex("<|im_start|>user"))
    return shown[start:].removeprefix("<|im_start|>assistant\n").partition("<|im_end|>")[0]


@pytest.mark.parametrize("template", sorted(FAMILY))
def test_a_template_tells_the_family_by_what_it_shows(template: str) -> None:
    assert PROMPTS[template]._family == FAMILY[template]


def test_a_template_that_shows_no_calls_or_others_has_no_family() -> None:
    assert Prompts(tiny_tokenizer())._family is None
    assert prompts_of("llama3_1")._family is None
    assert prompts_of("llama3_1").calls('<tool_call>{"name": "f"}</tool_call>', [1], [SEARCH]) == []


@settings(max_examples=60)
@given(
    st.sampled_from(["qwen2_5", "qwen3"]),
    st.lists(st.tuples(NAMES, st.dictionaries(TEXT, VALUES, max_size=3)), min_size=1, max_size=3),
)
def test_json_calls_survive_whatever_their_arguments(template: str, given: Any) -> None:
    calls = [{"name": name, "arguments": arguments} for name, arguments in given]
    text = written_by(PROMPTS[template], calls) if "<|im_" not in json.dumps(calls) else ""
    if text:
        assert read_calls(text, "hermes") == calls


@settings(max_examples=60)
@given(
    st.sampled_from(["qwen3_5_think", "qwen3_5_nothink"]),
    st.lists(
        st.tuples(NAMES, st.dictionaries(NAMES, VALUES, max_size=3)), min_size=1, max_size=3, unique_by=lambda c: c[0]
    ),
)
def test_xml_calls_survive_whatever_their_arguments(template: str, given: Any) -> None:
    calls = [{"name": name, "arguments": arguments} for name, arguments in given]
    tools = [schema_of(name, arguments) for name, arguments in given]
    assert read_calls(written_by(PROMPTS[template], calls), "qwen-xml", tools) == calls


def test_types_come_from_the_schema_and_what_does_not_fit_stays_text() -> None:
    def value(raw: str, schema: Any) -> Any:
        tools = [{"function": {"name": "f", "parameters": {"properties": {"x": schema}}}}]
        text = f"<tool_call>\n<function=f>\n<parameter=x>\n{raw}\n</parameter>\n</function>\n</tool_call>"
        (call,) = read_calls(text, "qwen-xml", tools)
        return call["arguments"]["x"]

    assert value("7", {"type": "string"}) == value("7", {}) == value("7", None) == value("7", {"enum": ["7"]}) == "7"
    assert value("7", {"type": "integer"}) == value("7.0", {"type": "integer"}) == 7
    assert isinstance(value("7.0", {"type": "integer"}), int)
    assert value("7.5", {"type": "integer"}) == "7.5"
    assert value("true", {"type": "boolean"}) is value("True", {"type": "boolean"}) is True
    assert value("true", {"type": "integer"}) == "true"
    assert value("None", {"type": ["string", "null"]}) is None
    assert value("none of it", {"anyOf": [{"type": "string"}, {"type": "null"}]}) == "none of it"
    assert value("[1", {"type": "array"}) == "[1"
    assert value("NaN", {"type": "number"}) == "NaN"
    assert value("null", {"type": "integer", "nullable": True}) is None
    for odd in ("x", 5, [1], {"type": 5}, {"type": [5]}, {"anyOf": 5}, {"oneOf": [5, {"type": "integer"}]}):
        assert value("7", odd) in ("7", 7)


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        "<tool_call></tool_call>",
        "<tool_call>search</tool_call>",
        '<tool_call>{"name": "search", "arguments": {"query": "x"}</tool_call>',
        '<tool_call>{"name": "search", "arguments": ["x"]}</tool_call>',
        '<tool_call>{"name": "search", "arguments": "x"}</tool_call>',
        '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "search", "arguments": {"k": NaN}}</tool_call>',
        '<tool_call>{"name": "search", "arguments": {}} and more',
        '<tool_call>["search"]</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"k": ' + "9" * 5000 + "}}</tool_call>",
        '<tool_call>{"name": "f", "arguments": {"k": ' + "9" * 2000 + "}}</tool_call>",
        '<tool_call>{"name": "f", "arguments": {"k": ' + "[" * 100_000 + "</tool_call>",
        '<tool_call>{"name": "f", "arguments": {"k": ' + "[" * 70 + "]" * 70 + "}}</tool_call>",
        '<think>I shall <tool_call>{"name": "search", "arguments": {}}</tool_call>',
        '<think>or <tool_call>{"name": "search", "arguments": {}}</tool_call></think> no.',
        "<tool_call><function=search></tool_call>",
        "<tool_call><function=search><parameter=query>x</function></tool_call>",
        "<tool_call><function=search><parameter=query>x</parameter></tool_call>",
        "<tool_call><function=search>x</function></tool_call>",
        "<tool_call><function=search></function> and more",
    ],
)
def test_what_is_malformed_is_no_call(text: str) -> None:
    for family in FAMILIES:
        assert read_calls(text, family, [SEARCH]) == []


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('<tool_call>{"name": "search", "arguments": {"query": "a\nb"}}</tool_call>', {"query": "a\nb"}),
        ('<tool_call>\n{"name": "search", "arguments": "{\\"k\\": 1}"}\n</tool_call>', {"k": 1}),
        ('I look. <tool_call> {"name": "search"} </tool_call> So.', {}),
        ('<tool_call>{"name": "search", "arguments": null}', {}),
        ('x</think>\n<tool_call>{"name": "search", "arguments": {}}</tool_call>', {}),
        ('<tool_call>{"oops"</tool_call><tool_call>{"name": "search", "arguments": {}}</tool_call>', {}),
        ('<tool_call>{"name": "search", "arguments": {"query": "\\ud800"}}</tool_call>', {"query": "\ufffd"}),
    ],
)
def test_what_models_write_in_their_own_ways_is_read(text: str, arguments: dict[str, Any]) -> None:
    assert read_calls(text, "hermes") == [{"name": "search", "arguments": arguments}]


def test_one_line_xml_and_code_with_its_indentation_are_read() -> None:
    code = "  if x:\n    print(x)\n"
    text = f"<tool_call><function=python><parameter=code>\n{code}\n</parameter><parameter=n>3</parameter></function>"
    assert read_calls(text, "qwen-xml") == [{"name": "python", "arguments": {"code": code, "n": "3"}}]


PIECES = st.sampled_from(
    '<tool_call> </tool_call> <function=f> </function> <parameter=x> </parameter> <think> </think> {"name":"f",'
    '"arguments":{ "x":1 }} { } [ " \\ NaN name é'.split()
) | st.sampled_from(["\n", "\ud800"])


@settings(max_examples=150)
@given(st.lists(PIECES | st.text(max_size=5), max_size=30).map("".join), st.booleans())
@example("<tool_call>" * 2000 + "<function=f><parameter=x>" * 2000, False)
def test_any_text_is_read_and_what_is_read_goes_into_a_record(text: str, thinking: bool) -> None:
    for family in FAMILIES:
        calls = read_calls(text, family, [SEARCH], thinking)
        assert as_reply(Reply(text, "stop", calls)).tool_calls == calls
        assert len(calls) <= text.count("<tool_call>")


# in prompts


def test_a_reply_with_a_call_is_history_once_and_token_for_token() -> None:
    for name, family in FAMILY.items():
        prompts = PROMPTS[name]
        call = {"name": "search", "arguments": {"query": "who"}}
        text = written_by(prompts, [call])
        ask = Ask([user("q")], tools=[SEARCH])
        (prompt,) = prompts.ids([(ask, None)])
        assert isinstance(prompt, list)
        if family == "qwen-xml":  # the prompt has opened the thinking, or ended it
            text = text.partition("</think>")[2]
        if name == "qwen3_5_think":
            assert prompts.calls(text, prompt, ask.tools) == []
            text = f"I think.\n</think>\n\n{text.strip()}"
        text = text.strip()
        assert prompts.calls(text, prompt, ask.tools) == [call], family
        assert prompts.calls(text, prompt, None) == []
        completion = [*prompts.encode([text])[0], prompts.tokenizer.convert_tokens_to_ids("<|im_end|>")]
        reply = Reply(text, "stop", [call], prompt, completion)
        after = Ask([*ask.messages, reply.view().message, tool("Ada")], tools=[SEARCH])
        (next_prompt,) = prompts.ids([(after, Call(ask.messages, reply, tools=ask.tools))])
        assert isinstance(next_prompt, list)
        assert next_prompt[: len(prompt) + len(completion)] == prompt + completion
        shown = prompts.decode(next_prompt[len(prompt) :])
        assert shown.count("<tool_call>") == 1 and "<tool_response>\nAda\n</tool_response>" in shown


def test_a_few_shot_call_is_shown_as_the_template_shows_calls() -> None:
    call = {"name": "search", "arguments": {"query": "who"}}
    history: list[Message] = [user("q"), {"role": "assistant", "content": "Hm.", "tool_calls": [call]}, tool("a")]
    for name in FAMILY:
        shown = PROMPTS[name].render(Ask([*history, user("and now?")], tools=[SEARCH]))
        assert read_calls(shown[shown.rindex("Hm.") :], FAMILY[name]) == [call]  # type: ignore[arg-type]


def test_results_are_linked_to_the_calls_in_order() -> None:
    calls = [{"name": "a", "arguments": {}}, {"function": {"name": "b", "arguments": '{"x": 1}'}}]
    said = {"role": "assistant", "content": "", "tool_calls": calls}
    shown = linked([user("q"), said, tool("1"), tool("2"), tool("3"), user("q"), said, user("no"), tool("4")])
    first, second = (call["id"] for call in shown[1]["tool_calls"])
    assert [m.get("tool_call_id") for m in shown] == [None, None, first, second, None, None, None, None, None]
    assert shown[1]["tool_calls"][1]["function"] == {"name": "b", "arguments": {"x": 1}}
    assert len({call["id"] for m in shown for call in m.get("tool_calls", [])}) == 4


@pytest.mark.parametrize(
    "odd", [5, "x", {"name": "f"}, [5], [{"name": 5}], [{"function": 5}], [{"name": "f", "arguments": "{"}]]
)
def test_what_is_no_call_in_a_message_is_said(odd: Any) -> None:
    message = {"role": "assistant", "content": "", "tool_calls": odd}
    with pytest.raises(ValueError, match=r"tool_calls is a list|a tool call is"):
        calls_of(message)
    (error,) = PROMPTS["qwen3"].ids([(Ask([user("q"), message]), None)])
    assert not isinstance(error, list)


@given(NAMES | TEXT, TEXT)
def test_a_call_as_text_is_read_back_if_its_arguments_are_json(name: str, arguments: str) -> None:
    found = read_calls(write_call(name, json.dumps({"x": arguments})), "hermes")
    assert found == ([{"name": name, "arguments": {"x": arguments}}] if name else [])
    read_calls(write_call(name, arguments), "hermes")


def test_a_policy_reads_the_calls_of_its_replies_and_only_where_tools_were_shown() -> None:
    tokenizer = copy.deepcopy(tiny_tokenizer())
    tokenizer.chat_template = (TEMPLATES / "qwen3.jinja").read_text()
    policy = TransformersPolicy(tiny_model(), tokenizer)
    text = '<tool_call>\n{"name": "search", "arguments": {"query": "x"}}\n</tool_call>'
    completion = policy.prompts.encode([text])[0]
    for tools, calls in (([SEARCH], [{"name": "search", "arguments": {"query": "x"}}]), (None, [])):
        (row,) = policy._rows.make([Request(Ask([user("q")], tools=tools), 0, 64)], [0])
        row.completion = completion
        _, reply = policy._rows.ended(row)
        assert isinstance(reply, Reply)
        assert (reply.text, reply.tool_calls) == (text, calls)
