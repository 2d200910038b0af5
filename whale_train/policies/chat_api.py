"""The Chat Completions API: what is sent for a request, and what is read from an answer.

OpenAI's own API, engines that take more than it (vLLM, llama.cpp), and all others that speak it. Where an engine has
defaults of its own (a model's `generation_config.json`, llama.cpp's `min_p`), sampling is spelled out, so that the same
settings mean the same distribution. An engine that leaves stop strings out of its text is not given any: the text is
cut here, and what came after was paid for.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from whale_envs.episode import FinishReason, Reply
from whale_envs.harness.helpers import Message
from whale_envs.harness.wire import plain
from whale_envs.tool_calls import as_call, calls_of, linked, write_call
from whale_train.policies.base import Request, Sampling


@dataclass(frozen=True)
class Dialect:
    """What an endpoint's engine does besides the API.

    `extras`: it takes `top_k`, arguments of the chat template, and tool results that answer no call. `token_ids`: it
    returns token ids and log-probabilities, and leaves stop strings in the text. `own`: it is OpenAI's, where some
    models refuse what others take.
    """

    extras: bool = False
    token_ids: bool = False
    own: bool = False


#: Engines by what they say of their models in GET /models (`owned_by`): the class `ModelCard` of vLLM, server.cpp of
#: llama.cpp.
DIALECTS = {"vllm": Dialect(extras=True, token_ids=True), "llamacpp": Dialect(extras=True)}
_FINISHES: dict[str | None, FinishReason] = {
    "stop": "stop",
    "tool_calls": "stop",
    "function_call": "stop",
    "length": "length",
}


class Refused(Exception):
    """An answer that is no reply, and would be none if the same were asked again."""


#: A token's id, or a number of tokens.
_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Model(msgspec.Struct):
    id: str
    owned_by: str | None = None


class _Listing(msgspec.Struct):
    data: list[_Model]


class _Message(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: Any = None
    tool_calls: Any = None  # what a model wrote may be anything, and is the harness's to see


class _Logprob(msgspec.Struct):
    logprob: float


class _Logprobs(msgspec.Struct):
    content: list[_Logprob] | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None
    token_ids: list[_Count] | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: _Count
    completion_tokens: _Count


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage | None = None
    prompt_token_ids: list[_Count] | None = None


def read_listing(body: bytes) -> list[tuple[str, str]]:
    """(id, owner) of each model in an answer to GET /models. Raises `ValueError` for what is none."""
    try:
        return [(model.id, model.owned_by or "") for model in msgspec.json.decode(body, type=_Listing).data]
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None


def write_request(request: Request, model: str, sampling: Sampling, dialect: Dialect) -> dict[str, Any]:
    """The body of a request. Raises `ValueError` for what the endpoint cannot be asked."""
    ask = request.ask
    if request.max_tokens < 1:
        raise ValueError(f"max_tokens is {request.max_tokens}, expected at least 1")
    if ask.template_kwargs and not dialect.extras:
        raise ValueError(f"the endpoint takes no template_kwargs, and the harness asks for {ask.template_kwargs}")
    body: dict[str, Any] = {
        "model": model,
        "messages": write_messages(ask.messages, dialect),
        "max_completion_tokens" if dialect.own else "max_tokens": request.max_tokens,
        "seed": request.seed % 2**31,  # what every engine takes
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
    }
    if ask.tools:
        body["tools"] = ask.tools
    if dialect.own:  # reasoning models refuse the two, be they the default
        body = {key: value for key, value in body.items() if not (key in ("temperature", "top_p") and value == 1)}
    if dialect.extras:
        body |= {"top_k": sampling.top_k or -1, "min_p": 0.0, "repetition_penalty": 1.0}
        if ask.template_kwargs:
            body["chat_template_kwargs"] = ask.template_kwargs
    if dialect.token_ids:
        body |= {"return_token_ids": True, "logprobs": True, "top_logprobs": 0}
        if ask.stop:
            body |= {"stop": list(ask.stop), "include_stop_str_in_output": True}
    return body


def write_messages(messages: list[Message], dialect: Dialect) -> list[Message]:
    """A harness's messages as the API takes them.

    It wants each call answered, and each tool result to answer a call. A call that the harness has not answered is
    shown as text; a result that answers none as a user's message, where the engine wants it so. Raises `ValueError` for
    `tool_calls` that are none.
    """
    answered = [_answered(message, messages[at + 1 :]) for at, message in enumerate(messages)]
    written: list[Message] = []
    for message in linked(answered):
        known: Message = {key: message[key] for key in ("role", "content", "tool_call_id") if key in message}
        if known["role"] == "tool" and "tool_call_id" not in known and not dialect.extras:
            known["role"] = "user"
        if calls := message.get("tool_calls"):
            known["tool_calls"] = [{**call, "function": _as_text(call["function"])} for call in calls]
        written.append(known)
    return written


def _answered(message: Message, after: Sequence[Message]) -> Message:
    """The message, with the calls as text that none of the tool messages right after it answers."""
    calls = calls_of(message)
    results = next((n for n, m in enumerate(after) if m["role"] != "tool"), len(after))
    texts = [write_call(call["name"], json.dumps(call["arguments"], ensure_ascii=False)) for call in calls[results:]]
    content = "\n".join([text for text in (message["content"], *texts) if text]) if texts else message["content"]
    return {**message, "content": content, "tool_calls": calls[:results]}


def _as_text(function: dict[str, Any]) -> dict[str, Any]:
    return {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}


def read_reply(body: bytes, stop: Sequence[str], dialect: Dialect, price: tuple[float, float]) -> Reply:
    """The reply in an answer; `price` is dollars a million tokens in and out.

    Thinking that is given apart stands in the text as models write it, in `<think>`. A call that is malformed, in its
    arguments or altogether, stands there, too, as a call in JSON. Raises `ValueError` for a body that is no answer, and
    `Refused`.
    """
    try:
        completion = msgspec.json.decode(body, type=_Completion)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"the body is no chat completion: {error}") from None
    if not completion.choices:
        raise ValueError("the answer has no choices")
    choice, usage = completion.choices[0], completion.usage
    if choice.finish_reason not in _FINISHES:
        raise Refused(f"the reply was broken off: finish_reason {choice.finish_reason!r}")
    if usage is None and any(price):
        raise Refused("it answers without usage, so that what it costs is not known")
    text, calls = _said(choice.message)
    finish = _FINISHES[choice.finish_reason]
    if not dialect.token_ids:
        ends = [text.find(s) + len(s) for s in stop if s in text]
        text, finish = (text[: min(ends)], "stop") if ends else (text, finish)
    try:
        text, calls = plain([text, calls], "the reply")
    except ValueError as error:
        raise Refused(str(error)) from None
    counted = (usage.prompt_tokens, usage.completion_tokens) if usage else None
    dollars = sum(n * each for n, each in zip(counted, price, strict=True)) / 1e6 if counted else 0.0
    return Reply(text, finish, calls, *_ids(completion, choice), counted, dollars)


def _said(message: _Message) -> tuple[str, list[dict[str, Any]]]:
    """The text and the calls of a message."""
    text = message.content or message.refusal or ""
    thinking = message.reasoning_content or message.reasoning
    if isinstance(thinking, str) and thinking:
        text = f"<think>\n{thinking}\n</think>\n\n{text}"
    calls: list[dict[str, Any]] = []
    given = message.tool_calls or []
    for call in given if isinstance(given, list) else [given]:
        function = call.get("function") if isinstance(call, dict) else None
        name, arguments = (function.get(key) if isinstance(function, dict) else None for key in ("name", "arguments"))
        try:
            calls.append(plain(as_call({"name": name, "arguments": arguments}), "a call"))
        except ValueError:
            if not isinstance(name, str):
                name, arguments = "", call
            raw = arguments if isinstance(arguments, str) else json.dumps(arguments)
            text += ("\n" if text else "") + write_call(name, raw)
    return text, calls


def _ids(completion: _Completion, choice: _Choice) -> tuple[list[int] | None, list[int] | None, list[float] | None]:
    """Prompt ids, completion ids and their log-probabilities, where the engine returns them."""
    prompt, ids = completion.prompt_token_ids, choice.token_ids
    if not prompt or ids is None:
        return None, None, None
    logprobs = [p.logprob for p in (choice.logprobs and choice.logprobs.content) or []]
    return prompt, ids, logprobs if len(logprobs) == len(ids) else None
