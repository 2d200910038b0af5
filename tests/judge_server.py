"""A server on loopback that answers as a judge: the Messages API and the Chat Completions API, unstreamed.

It is given a function from the user's message, as JSON, to what the model says, or to a `Status`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from loopback import JsonHandler, Loopback

KEY = "sk-test-0123456789abcdef"


@dataclass
class Status:
    """An answer with an HTTP status, or with a body of another kind."""

    code: int
    message: str = "as the test wants it"
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None


class JudgeServer(Loopback):
    """Serves `say`; `requests` are the JSON bodies, `open` and `most_open` how many were being answered at once."""

    def __init__(self, say: Callable[[dict[str, Any]], str | Status]) -> None:
        self.say = say
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.open = self.most_open = 0
        self.lock = threading.Lock()
        super().__init__(_handler(self))


def _handler(server: JudgeServer) -> type[BaseHTTPRequestHandler]:
    class Handler(JsonHandler):
        def do_POST(self) -> None:
            body = self.asked()
            with server.lock:
                server.requests.append(body)
                server.keys.append(self.headers["x-api-key"] or self.headers["authorization"] or "")
                server.open += 1
                server.most_open = max(server.most_open, server.open)
            said = server.say(json.loads(body["messages"][-1]["content"]))
            with server.lock:
                server.open -= 1
            if isinstance(said, Status):
                self.answer(said.code, _error(said), said.headers)
            else:
                self.answer(200, json.dumps(_said(self.path, said)).encode(), {})

    return Handler


def _error(status: Status) -> bytes:
    error = {"type": "error", "error": {"type": "api_error", "message": status.message}}
    return json.dumps(error).encode() if status.body is None else status.body


def _said(path: str, text: str) -> dict[str, Any]:
    if path == "/v1/messages":
        return {
            "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
            "content": [{"type": "text", "text": text}], "usage": {"input_tokens": 200, "output_tokens": 4},
        }  # fmt: skip
    assert path == "/v1/chat/completions"
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    usage = {"prompt_tokens": 200, "completion_tokens": 4, "total_tokens": 204}
    return {"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}
