"""One answer of the Messages API, put together from the server-sent events of its stream.

Blocks stay plain JSON, so that they can be sent back and logged as they came. The SDK's own accumulator is not used:
it raises on a tool call whose input is no JSON, and that must cost one tool call and not the conversation.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


class StreamError(Exception):
    """A stream broke off, carries an error, or is none of the Messages API's."""


@dataclass
class Answer:
    """What a stream has said so far.

    `unreadable` maps the id of a tool call whose input is no JSON object to what is wrong with it.
    """

    content: list[dict[str, Any]] = field(default_factory=list)
    usage: dict[str, int] = field(default_factory=dict)
    stop_reason: str = ""
    stop_details: dict[str, Any] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)
    finished: bool = False
    _inputs: dict[int, str] = field(default_factory=dict)

    def take(self, data: str) -> None:
        """Take one event's data. Raises `StreamError` for an error event and for what is no event of the API."""
        try:
            event = json.loads(data)
            kind = event["type"]
            if kind == "error":
                raise StreamError(f"{event['error']['type']}: {event['error']['message']}")
            if kind == "message_start":
                self._count(event["message"]["usage"])
            elif kind == "content_block_start":
                self.content.append(_text_safe(dict(event["content_block"])))
            elif kind == "content_block_delta":
                self._extend(event["index"], event["delta"])
            elif kind == "content_block_stop":
                self._close(event["index"])
            elif kind == "message_delta":
                self.stop_reason = event["delta"]["stop_reason"] or ""
                self.stop_details = event["delta"].get("stop_details") or {}
                self._count(event["usage"])
            elif kind == "message_stop":
                self.finished = True
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise StreamError(f"an event that the API does not have ({type(error).__name__}): {data[:200]}") from None

    def sendable(self) -> list[dict[str, Any]]:
        """The blocks that may be sent back: no empty text, no thinking that was cut before its signature."""
        return [
            b
            for b in self.content
            if not (b["type"] == "text" and not b["text"].strip())
            and not (b["type"] == "thinking" and not b.get("signature"))
        ]

    def _extend(self, index: int, delta: dict[str, Any]) -> None:
        block, kind = self.content[index], delta["type"]
        if kind == "input_json_delta":
            self._inputs[index] = self._inputs.get(index, "") + delta["partial_json"]
        elif kind == "signature_delta":
            block["signature"] = delta["signature"]
        elif kind in ("text_delta", "thinking_delta"):
            name = kind.removesuffix("_delta")
            block[name] += _text_safe(delta[name])

    def _close(self, index: int) -> None:
        block = self.content[index]
        if block["type"] != "tool_use":
            return
        try:
            given = json.loads(self._inputs.get(index) or "{}")
            if not isinstance(given, dict):
                raise ValueError(f"{type(given).__name__} in place of an object")
        except (ValueError, RecursionError) as error:
            self.unreadable[block["id"]], given = str(error), {}
        block["input"] = _text_safe(given)

    def _count(self, usage: dict[str, Any]) -> None:
        """Counts are totals so far, so later ones replace earlier ones."""
        self.usage.update({k: v for k, v in usage.items() if k.endswith("_tokens") and isinstance(v, int)})


def _text_safe(value: Any) -> Any:
    """JSON without lone surrogates, which no UTF-8 file or request can hold."""
    return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
