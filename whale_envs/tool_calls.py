"""Tool calls: read out of what a model wrote, and put into messages as chat templates and services want them.

A call is `{"name": "search", "arguments": {"query": "..."}}`, in `Reply.tool_calls` and in a harness's messages. Two
families of models are read: "hermes", JSON in `<tool_call>` (Hermes, Qwen2.5, Qwen3), and "qwen-xml",
`<function=...>` and `<parameter=...>` in it (Qwen3-Coder, Qwen3.5). What is malformed is no call and stays in the text,
for the harness to see; nothing in a model's thinking is a call.

Not `parse_response` of transformers (5.24), which needs a response template that hardly a tokenizer brings, ends JSON
at a `</tool_call>` inside a string, strips a value's blanks (which are part of Python code), and gives up all calls of
a reply for one that is malformed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

from whale_envs.harness.helpers import Message
from whale_envs.harness.wire import plain

Family = Literal["hermes", "qwen-xml"]
Schemas = Sequence[dict[str, Any]]
ToolUse = dict[str, Any]

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION = re.compile(r"\s*<function=([^\n>]+)>")
_PARAMETER = re.compile(r"\s*<parameter=([^\n>]+)>\n?")
_VALUE_ENDS = re.compile(r"</parameter>(?=\s*(?:<parameter=|</function>))")
_FUNCTION_ENDS = re.compile(r"\s*</function>")
_BLANK = re.compile(r"\s*")


def read_calls(text: str, family: Family, tools: Schemas = (), thinking: bool = False) -> list[ToolUse]:
    """The calls in a reply, in order; never raises.

    `tools` are the schemas that the model was shown: by them, an XML parameter that is no string gets its type.
    `thinking`: the prompt has opened the model's thinking.
    """
    said = text
    if thinking or text.lstrip().startswith("<think>"):
        said = text.partition("</think>")[2]
    read, calls, at = _READERS[family], [], 0
    while (at := said.find(_OPEN, at)) >= 0:
        at += len(_OPEN)
        if (found := read(said, at, tools)) and (end := _closed(said, found[1])) is not None:
            calls.append(found[0])
            at = end
    try:
        copied: list[ToolUse] = plain([text, calls], "a reply")[1]
    except ValueError:  # too large or too deep for a record
        return []
    return copied


def write_call(name: str, arguments: str) -> str:
    """A call as text, for a model or a harness that cannot be shown it otherwise. `arguments` need not be JSON."""
    return f'{_OPEN}\n{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {arguments}}}\n{_CLOSE}'


def as_call(value: Any) -> ToolUse:
    """A call in our form, given in it or in that of the Chat Completions API. Raises `ValueError` for what is none."""
    found = _use(value.get("function", value)) if isinstance(value, dict) else None
    if found is None:
        raise ValueError(f'a tool call is {{"name": ..., "arguments": {{...}}}}, not {value!r:.80}')
    return found


def calls_of(message: Message) -> list[ToolUse]:
    """The calls that a message carries besides its text. Raises `ValueError` for `tool_calls` that are none."""
    carried = message.get("tool_calls") or []
    if not isinstance(carried, list):
        raise ValueError(f"tool_calls is a list of calls, not {carried!r:.80}")
    return [as_call(call) for call in carried]


def linked(messages: list[Message]) -> list[Message]:
    """Messages in the form of the Chat Completions API, as most chat templates expect it: calls with ids, and tool
    messages with the id of the call that they answer (the first after a reply answers its first call, and so on).

    Raises `ValueError` for a message whose `tool_calls` are no list of calls.
    """
    if not any("tool_calls" in m for m in messages):
        return messages
    shown: list[Message] = []
    unanswered: list[str] = []
    for number, message in enumerate(messages):
        if message["role"] == "tool":
            answers = {"tool_call_id": unanswered.pop(0)} if unanswered else {}
            shown.append({**message, **answers})
            continue
        calls = calls_of(message)
        unanswered = [f"call{number % 1000:03d}{n % 100:02d}" for n in range(len(calls))]  # 9 letters: Mistral's rule
        nested = [
            {"id": name, "type": "function", "function": call} for name, call in zip(unanswered, calls, strict=True)
        ]
        shown.append({**message, "tool_calls": nested} if nested else message)
    return shown


def _closed(text: str, at: int) -> int | None:
    """Where a call ends whose content ends at `at`; the end of the text will do. None if something else follows."""
    at = _blank(text, at)
    if text.startswith(_CLOSE, at):
        return at + len(_CLOSE)
    return at if at == len(text) else None


def _hermes(text: str, at: int, tools: Schemas) -> tuple[ToolUse, int] | None:
    try:
        value, end = _JSON.raw_decode(text, _blank(text, at))
    except (ValueError, RecursionError):
        return None
    found = _use(value)
    return (found, end) if found else None


def _qwen_xml(text: str, at: int, tools: Schemas) -> tuple[ToolUse, int] | None:
    function = _FUNCTION.match(text, at)
    if not function:
        return None
    name, at = function[1].strip(), function.end()
    schemas, arguments = _parameters(name, tools), dict[str, Any]()
    while not (ended := _FUNCTION_ENDS.match(text, at)):
        opened = _PARAMETER.match(text, at)
        closed = _VALUE_ENDS.search(text, opened.end()) if opened else None
        if not opened or not closed:
            return None
        raw, key = text[opened.end() : closed.start()].removesuffix("\n"), opened[1].strip()
        arguments[key] = _typed(raw, _types(schemas.get(key)))
        at = closed.end()
    return {"name": name, "arguments": arguments}, ended.end()


_READERS: dict[Family, Callable[[str, int, Schemas], tuple[ToolUse, int] | None]] = {
    "hermes": _hermes,
    "qwen-xml": _qwen_xml,
}
FAMILIES: tuple[Family, ...] = tuple(_READERS)


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


#: Not strict: models put line breaks in strings as they are.
_JSON = json.JSONDecoder(strict=False, parse_constant=_no_constant)


def _json(text: str) -> Any:
    """The JSON value that is the whole of `text`. Raises `ValueError`."""
    try:
        return _JSON.decode(text)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _use(value: Any) -> ToolUse | None:
    """A call in our form; some models write its arguments as a string of JSON, or leave out empty ones."""
    if not isinstance(value, dict):
        return None
    name, arguments = value.get("name"), value.get("arguments")
    arguments = {} if arguments is None else arguments
    if isinstance(arguments, str):
        try:
            arguments = _json(arguments)
        except ValueError:
            return None
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    return {"name": name, "arguments": arguments}


def _blank(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    assert found is not None
    return found.end()


def _parameters(name: str, tools: Schemas) -> dict[str, Any]:
    """The JSON schemas of a tool's parameters, by name; schemas come from harnesses, so nothing of them is certain."""
    for tool in tools:
        function = tool.get("function", tool)
        if isinstance(function, dict) and function.get("name") == name:
            parameters = function.get("parameters")
            properties = parameters.get("properties") if isinstance(parameters, dict) else None
            return properties if isinstance(properties, dict) else {}
    return {}


def _types(schema: Any) -> set[str]:
    if not isinstance(schema, dict):
        return set()
    named = schema.get("type")
    types = {t for t in (named if isinstance(named, list) else [named]) if isinstance(t, str)}
    for union in ("anyOf", "oneOf"):
        for choice in schema[union] if isinstance(schema.get(union), list) else []:
            types |= _types(choice)
    return types | ({"null"} if schema.get("nullable") is True else set())


def _typed(raw: str, types: set[str]) -> Any:
    """A parameter's value by the types that it may have. Chat templates write None and True as Python does.

    What fits none of them stays text.
    """
    word = raw.strip()
    if "null" in types and word in ("None", "null"):
        return None
    if "boolean" in types and word.lower() in ("true", "false"):
        return word.lower() == "true"
    try:
        value = _json(word) if types - {"string"} else raw
    except ValueError:
        return raw
    if isinstance(value, float) and value.is_integer() and "integer" in types and "number" not in types:
        return int(value)
    kinds: dict[str, tuple[type, ...]] = {
        "integer": (int,),
        "number": (int, float),
        "object": (dict,),
        "array": (list,),
    }
    fits = any(kind in types and isinstance(value, wanted) for kind, wanted in kinds.items())
    return value if fits and not isinstance(value, bool) else raw
