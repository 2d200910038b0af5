"""One answer of the Chat Completions API, put together from the chunks of its stream, or read whole.

Servers differ: some answer whole although a stream was asked for, some leave out the index or the id of a tool call,
some give thinking apart. A tool call's id is made up where none is given.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, ClassVar

from whale_train.meta_harness.proposers.service import Answer, End, StreamError, ToolCall, read_input, text_safe


@dataclass
class ChatAnswer(Answer):
    """`text` and `thinking` so far; `_calls` are the tool calls by index, their arguments as text."""

    text: str = ""
    thinking: str = ""
    _refusal: str = ""
    _calls: dict[int, dict[str, str]] = field(default_factory=dict)

    ENDS: ClassVar[dict[str, End]] = {"length": "cut", "content_filter": "refused"}

    def _take(self, data: str) -> None:
        if data == "[DONE]":
            return
        event = json.loads(data)
        if error := event.get("error"):
            raise StreamError(f"the service says: {error['message'] if isinstance(error, dict) else error}")
        for name, count in (event.get("usage") or {}).items():
            if name.endswith("_tokens") and isinstance(count, int):
                self.usage[name] = count
        cached = ((event.get("usage") or {}).get("prompt_tokens_details") or {}).get("cached_tokens")
        if isinstance(cached, int):
            self.usage["cached_tokens"] = cached
        for choice in event["choices"][:1]:
            whole = choice.get("message")
            self._extend(whole if whole is not None else choice.get("delta") or {}, whole is not None)
            if reason := choice.get("finish_reason"):
                self.stop_reason, self.finished = str(reason), True

    @property
    def end(self) -> End:
        """See `Answer.end`."""
        return "refused" if self._refusal else super().end

    @property
    def refusal(self) -> str:
        """See `Answer.refusal`."""
        return self._refusal

    @property
    def calls(self) -> list[ToolCall]:
        """See `Answer.calls`."""
        return [ToolCall(c["id"], c["name"], *read_input(c["arguments"])) for _, c in sorted(self._calls.items())]

    @property
    def received(self) -> Any:
        """See `Answer.received`."""
        said = {"content": self.text, "reasoning": self.thinking, "refusal": self._refusal}
        said_calls = [call for _, call in sorted(self._calls.items())]
        return {k: v for k, v in {**said, "tool_calls": said_calls}.items() if v}

    def sent_back(self) -> list[dict[str, Any]]:
        """See `Answer.sent_back`: without the thinking, which chat templates leave out, and with `{}` for arguments
        that are no JSON object, on which servers fail. Never nothing: many templates want roles to alternate."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if calls := self.calls:
            functions = [{"name": c.name, "arguments": json.dumps(c.input, ensure_ascii=False)} for c in calls]
            message["tool_calls"] = [
                {"id": c.id, "type": "function", "function": f} for c, f in zip(calls, functions, strict=True)
            ]
        return [message]

    def _extend(self, delta: dict[str, Any], whole: bool) -> None:
        self.text += text_safe(delta.get("content") or "")
        thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
        self.thinking += text_safe(thought) if isinstance(thought, str) else ""
        self._refusal += text_safe(delta.get("refusal") or "")
        for part in delta.get("tool_calls") or []:
            call = self._call(part, whole)
            function = part.get("function") or {}
            call["name"] = call["name"] or text_safe(function.get("name") or "")
            given = function.get("arguments")
            call["arguments"] += given if isinstance(given, str) else "" if given is None else json.dumps(given)
            call["arguments"] = text_safe(call["arguments"])

    def _call(self, part: dict[str, Any], whole: bool) -> dict[str, str]:
        """The call that a part belongs to: by its index or, where it has none, the last one unless it has an id."""
        index = part.get("index")
        if not isinstance(index, int):
            last = max(self._calls, default=-1)
            index = last + 1 if whole or part.get("id") or not self._calls else last
        made_up = f"call{index:05d}"  # 9 letters and digits, which is Mistral's rule
        return self._calls.setdefault(index, {"id": text_safe(part.get("id")) or made_up, "name": "", "arguments": ""})
