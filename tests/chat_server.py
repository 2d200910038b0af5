"""A server on loopback that speaks the Chat Completions API as vLLM, llama.cpp or a hosted one does.

It is given a function from a request's body to a reply: a text, the message itself, a whole answer, a `Status`, `CUT`
(the connection ends within the answer) or `HANG` (nothing comes until the server is closed). Where a stream is asked
for, a text, a message or a whole answer is streamed, and so is a list: the events, each as JSON or as text.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

from judge_server import KEY, Status
from loopback import JsonHandler, Loopback

__all__ = ["CUT", "HANG", "KEY", "ChatServer", "Status", "called", "completion"]

CUT, HANG = object(), object()
Body = dict[str, Any]
Say = Callable[[Body], Any]


class ChatServer(Loopback):
    """Serves `say`; `requests` are the bodies in order and `times` when they came (by `time.monotonic`).

    `most_open` is how many were being answered at once. `owner` is what it calls itself in its list of models.
    `streams` is whether it streams where it is asked to.
    """

    streams = True

    def __init__(self, say: Say, owner: str | None = "somebody", models: tuple[str, ...] = ("m",)) -> None:
        self.say = say
        self.models: Any = {"data": [{"id": name, "object": "model", "owned_by": owner} for name in models]}
        self.requests: list[Body] = []
        self.times: list[float] = []
        self.keys: list[str] = []
        self.open = self.most_open = 0
        self.lock = threading.Lock()
        self.ended = threading.Event()
        super().__init__(_handler(self))

    @property
    def base(self) -> str:
        """Its base URL, for the policy."""
        return f"{self.url}/v1"

    def __exit__(self, *error: object) -> None:
        self.ended.set()
        super().__exit__(*error)


def completion(message: Body | str, finish: str = "stop", **more: Any) -> Body:
    """An answer of the API."""
    message = {"role": "assistant", "content": message} if isinstance(message, str) else message
    choice = {"index": 0, "finish_reason": finish, "message": message}
    usage = {"prompt_tokens": 20, "completion_tokens": 4, "total_tokens": 24}
    return {"id": "c", "object": "chat.completion", "model": "m", "choices": [choice], "usage": usage} | more


def called(*calls: tuple[str, str], content: str | None = None) -> Body:
    """A message with calls: (name, arguments as text)."""
    made = [
        {"id": f"chatcmpl-tool-{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for n, (name, arguments) in enumerate(calls)
    ]
    return {"role": "assistant", "content": content, "tool_calls": made}


def chunks(answer: Body) -> list[Any]:
    """A whole answer as the events of a stream: text and arguments in pieces, usage at the end."""
    (choice,) = answer["choices"]
    message, deltas = choice["message"], [{"role": "assistant"}]
    for name in ("reasoning_content", "refusal", "content"):
        text = message.get(name) or ""
        deltas += [{name: text[at : at + 61]} for at in range(0, len(text), 61)]
    for index, call in enumerate(message.get("tool_calls") or []):
        function = call["function"]
        deltas.append({"tool_calls": [{**call, "index": index, "function": {**function, "arguments": ""}}]})
        for at in range(0, len(function["arguments"]), 61):
            piece = {"index": index, "function": {"arguments": function["arguments"][at : at + 61]}}
            deltas.append({"tool_calls": [piece]})
    events: list[Any] = [{"choices": [{"index": 0, "delta": d, "finish_reason": None}]} for d in deltas]
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]})
    return [*events, {"choices": [], "usage": answer.get("usage")}, "[DONE]"]


def sse(event: Any) -> str:
    """One server-sent event."""
    return f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n"


def _handler(server: ChatServer) -> type[BaseHTTPRequestHandler]:
    class Handler(JsonHandler):
        def do_GET(self) -> None:
            assert self.path == "/v1/models"
            self._send(server.models)

        def do_POST(self) -> None:
            arrived = time.monotonic()
            assert self.path == "/v1/chat/completions"
            body = self.asked()
            with server.lock:
                server.requests.append(body)
                server.times.append(arrived)
                server.keys.append(self.headers["authorization"] or "")
                server.open += 1
                server.most_open = max(server.most_open, server.open)
            said = server.say(body)
            with server.lock:
                server.open -= 1
            if isinstance(said, str) or (isinstance(said, dict) and "role" in said):
                said = completion(said)
            if body.get("stream") and server.streams and isinstance(said, dict):
                said = chunks(said)
            if isinstance(said, list):
                headers = {"content-type": "text/event-stream"}
                said = Status(200, headers=headers, body="".join(map(sse, said)).encode())
            self._send(said)

        def _send(self, said: Any) -> None:
            self.close_connection = True
            if said is HANG:
                server.ended.wait()
                return
            status = said if isinstance(said, Status) else Status(200, body=json.dumps(said, default=str).encode())
            if said is CUT:
                status = Status(200, headers={"content-length": "1000"}, body=b'{"choices": [')
            error = {"error": {"message": status.message, "type": "an_error", "code": status.code}}
            self.answer(status.code, json.dumps(error).encode() if status.body is None else status.body, status.headers)

    return Handler
