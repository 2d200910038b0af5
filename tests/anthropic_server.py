"""A server on loopback that speaks the Messages API as far as a proposer needs it: requests checked, answers streamed.

It is given a script: a list of what to answer, one entry a request, each an `Answer`, a `Status`, a `Broken`, or a
function from the request's JSON to one of these; the last entry answers every request from then on.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from loopback import JsonHandler, Loopback

KEY = "sk-ant-test-0123456789abcdef"


@dataclass
class Answer:
    """A streamed answer. A tool call's `input` may be a string: the JSON as the model wrote it, broken or not."""

    content: list[dict[str, Any]]
    stop_reason: str = ""
    stop_details: dict[str, Any] | None = None
    usage: dict[str, int] = field(
        default_factory=lambda: {
            "input_tokens": 1000,
            "cache_creation_input_tokens": 2000,
            "cache_read_input_tokens": 3000,
            "output_tokens": 400,
        }
    )


@dataclass
class Status:
    """An answer with an HTTP error."""

    code: int
    kind: str = "api_error"
    message: str = "as the test wants it"
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None


@dataclass
class Broken:
    """A stream that goes wrong: after `events` of `answer`'s events it is cut, turns silent, or says something else."""

    how: str  # "cut", "end", "silent", "pings", "error", "nonsense"
    events: int = 3
    answer: Answer = field(default_factory=lambda: Answer([text("Let me see.")]))
    seconds: float = 30.0


Reply = Answer | Status | Broken
Script = list[Reply | Callable[[dict[str, Any]], Reply]]


def text(words: str) -> dict[str, Any]:
    """A text block."""
    return {"type": "text", "text": words}


def thinking(words: str, signature: str = "signed") -> dict[str, Any]:
    """A block of thinking; one that was cut off has no signature."""
    return {"type": "thinking", "thinking": words, "signature": signature}


def call(name: str, input: Any, id: str = "") -> dict[str, Any]:
    """A tool call."""
    return {"type": "tool_use", "id": id or f"toolu_{name}_{time.monotonic_ns()}", "name": name, "input": input}


class MessagesServer(Loopback):
    """Serves a script; `requests` are the JSON bodies, `wrong` what the API would have refused in them."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[dict[str, Any]] = []
        self.wrong: list[str] = []
        self.closing = threading.Event()
        super().__init__(_handler(self))

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        super().__exit__()

    def reply(self, request: dict[str, Any]) -> Reply:
        """What the script says to this request."""
        entry = self.script[min(len(self.requests), len(self.script)) - 1]
        return entry(request) if callable(entry) else entry


def _handler(server: MessagesServer) -> type[BaseHTTPRequestHandler]:
    class Handler(JsonHandler):
        def do_POST(self) -> None:
            body = self.asked()
            if self.path != "/v1/messages" or not self.headers["anthropic-version"]:
                server.wrong.append(f"{self.path} {self.headers}")
            if KEY not in (self.headers["x-api-key"], (self.headers["authorization"] or "").removeprefix("Bearer ")):
                server.wrong.append("another key")
            server.requests.append(body)
            server.wrong += problems(body)
            self.close_connection = True
            reply = server.reply(body)
            if isinstance(reply, Status):
                return self.refuse(reply)
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("transfer-encoding", "chunked")
            self.send_header("connection", "close")  # said, or a client sends its next request into the closing one
            self.end_headers()
            try:
                if isinstance(reply, Answer):
                    return self.chunks([*events(reply)], end=True)
                self.chunks([*events(reply.answer)][: reply.events])
                self.break_off(reply)
            except OSError:
                pass  # the client has hung up, as some tests want it to

        def refuse(self, reply: Status) -> None:
            said = {"type": "error", "error": {"type": reply.kind, "message": reply.message}}
            self.answer(reply.code, json.dumps(said).encode() if reply.body is None else reply.body, reply.headers)

        def chunks(self, parts: list[str], end: bool = False) -> None:
            for part in [*parts, ""] if end else parts:
                data = part.encode()
                self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()

        def break_off(self, reply: Broken) -> None:
            if reply.how == "error":
                error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
                self.chunks([sse("error", error)], end=True)
            elif reply.how == "nonsense":
                self.chunks(["event: content_block_delta\ndata: <html>[1, 2\n\n"], end=True)
            elif reply.how == "end":
                self.chunks([], end=True)
            elif reply.how in ("silent", "pings"):
                until = time.monotonic() + reply.seconds
                while time.monotonic() < until and not server.closing.wait(0.02):
                    if reply.how == "pings":
                        self.chunks([sse("ping", {"type": "ping"})])

    return Handler


def sse(name: str, data: dict[str, Any]) -> str:
    """One server-sent event."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


def events(answer: Answer) -> Iterator[str]:
    """The events of an answer as the API streams them: text and input in pieces, a ping among them."""

    def event(kind: str, **fields: Any) -> str:
        return sse(kind, {"type": kind, **fields})

    usage = {**answer.usage, "output_tokens": 1}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": [], "usage": usage}
    yield event("message_start", message={**message, "stop_reason": None, "stop_sequence": None})
    yield event("ping")
    for index, block in enumerate(answer.content):
        kind = block["type"]
        empty = {"text": {"text": ""}, "thinking": {"thinking": "", "signature": ""}, "tool_use": {"input": {}}}[kind]
        yield event("content_block_start", index=index, content_block={**block, **empty})
        given = block["input"] if kind == "tool_use" else block[kind]
        words = given if isinstance(given, str) else json.dumps(given)
        name, field_name = ("input_json_delta", "partial_json") if kind == "tool_use" else (f"{kind}_delta", kind)
        for start in range(0, len(words), 97):
            delta = {"type": name, field_name: words[start : start + 97]}
            yield event("content_block_delta", index=index, delta=delta)
        if block.get("signature"):
            delta = {"type": "signature_delta", "signature": block["signature"]}
            yield event("content_block_delta", index=index, delta=delta)
        yield event("content_block_stop", index=index)
    calls = any(b["type"] == "tool_use" for b in answer.content)
    delta = {"stop_reason": answer.stop_reason or ("tool_use" if calls else "end_turn"), "stop_sequence": None}
    details = {"stop_details": answer.stop_details} if answer.stop_details else {}
    yield event("message_delta", delta={**delta, **details}, usage={"output_tokens": answer.usage["output_tokens"]})
    yield event("message_stop")


def problems(body: dict[str, Any]) -> Iterator[str]:
    """What the API would refuse in a request."""
    roles = [m["role"] for m in body["messages"]]
    if roles[0] != "user" or roles[-1] != "user":
        yield f"roles {roles}"
    if body.get("stream") is not True:
        yield "not streamed"
    if body["max_tokens"] > 128_000 or body["thinking"]["type"] != "adaptive":
        yield "max_tokens or thinking"
    marked = [b for b in [*body["system"], *body["tools"]] if "cache_control" in b]
    if len(marked) + ("cache_control" in body) > 4:
        yield "too many cache marks"
    for tool in body["tools"]:
        if tool["input_schema"]["type"] != "object" or set(tool) - {
            "name", "description", "input_schema", "cache_control",
        }:  # fmt: skip
            yield f"tool {tool}"
    open_calls: set[str] = set()
    for message in body["messages"]:
        if not message["content"]:
            yield "an empty message"
        answered = {b["tool_use_id"] for b in message["content"] if b["type"] == "tool_result"}
        if message["role"] == "user" and answered != open_calls:
            yield f"calls {open_calls} are answered by {answered}"
        if message["role"] == "assistant":
            open_calls = {b["id"] for b in message["content"] if b["type"] == "tool_use"}
        else:
            open_calls = set()
        for block in message["content"]:
            if block["type"] == "text" and not block["text"].strip():
                yield "an empty text"
            if block["type"] == "thinking" and not block["signature"]:
                yield "thinking that is not signed"
            if block["type"] == "tool_use" and not isinstance(block["input"], dict):
                yield "an input that is no object"
