"""One answer of the Messages API, put together from the server-sent events of its stream."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, ClassVar

from whale_train.meta_harness.proposers.service import Answer, End, StreamError, ToolCall, read_input, text_safe


@dataclass
class MessagesAnswer(Answer):
    """`content` are the blocks so far. `unreadable` maps the id of a tool call whose input is no JSON object to what
    is wrong with it."""

    content: list[dict[str, Any]] = field(default_factory=list)
    stop_details: dict[str, Any] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)
    _inputs: dict[int, str] = field(default_factory=dict)

    ENDS: ClassVar[dict[str, End]] = {
        "max_tokens": "cut",
        "refusal": "refused",
        "model_context_window_exceeded": "full",
    }

    def _take(self, data: str) -> None:
        event = json.loads(data)
        kind = event["type"]
        if kind == "error":
            raise StreamError(f"{event['error']['type']}: {event['error']['message']}")
        if kind == "message_start":
            self._count(event["message"]["usage"])
        elif kind == "content_block_start":
            self.content.append(text_safe(dict(event["content_block"])))
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

    @property
    def refusal(self) -> str:
        """See `Answer.refusal`."""
        return self.stop_details.get("explanation") or self.stop_details.get("category") or ""

    @property
    def calls(self) -> list[ToolCall]:
        """See `Answer.calls`. One whose block was not closed has no input yet."""
        blocks = [b for b in self.content if b["type"] == "tool_use"]
        return [ToolCall(b["id"], b["name"], b["input"], self.unreadable.get(b["id"], "")) for b in blocks]

    @property
    def received(self) -> Any:
        """See `Answer.received`."""
        return self.content

    def sent_back(self) -> list[dict[str, Any]]:
        """See `Answer.sent_back`: no empty text, no thinking that was cut before its signature."""
        blocks = [
            b
            for b in self.content
            if not (b["type"] == "text" and not b["text"].strip())
            and not (b["type"] == "thinking" and not b.get("signature"))
        ]
        return [{"role": "assistant", "content": blocks}] if blocks else []

    def _extend(self, index: int, delta: dict[str, Any]) -> None:
        block, kind = self.content[index], delta["type"]
        if kind == "input_json_delta":
            self._inputs[index] = self._inputs.get(index, "") + delta["partial_json"]
        elif kind == "signature_delta":
            block["signature"] = delta["signature"]
        elif kind in ("text_delta", "thinking_delta"):
            name = kind.removesuffix("_delta")
            block[name] += text_safe(delta[name])

    def _close(self, index: int) -> None:
        block = self.content[index]
        if block["type"] == "tool_use":
            block["input"], wrong = read_input(self._inputs.get(index, ""))
            if wrong:
                self.unreadable[block["id"]] = wrong

    def _count(self, usage: dict[str, Any]) -> None:
        """Counts are totals so far, so later ones replace earlier ones."""
        self.usage.update({k: v for k, v in usage.items() if k.endswith("_tokens") and isinstance(v, int)})
