"""A model on the Chat Completions API, OpenAI's own or any server's that speaks it: vLLM, llama.cpp, Ollama.

Spelled as policies are: openai:MODEL@http://HOST:PORT/v1, or openai:MODEL@IN/OUT with its price. A stream is asked
for, so that limits hold while a slow model answers; a server that answers in one piece is read, too. Local models have
short contexts, so that old results of tools are left out when a conversation has outgrown one.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from whale_envs.services import Patience, timeout
from whale_train.meta_harness.proposers.base import Cost
from whale_train.meta_harness.proposers.chat_stream import ChatAnswer
from whale_train.meta_harness.proposers.service import ToolResult
from whale_train.policies.chat_endpoint import ChatEndpoint, connect, read_spec

#: How long the list of models is waited for when the endpoint is looked at; a conversation has `Limits`.
PATIENCE = Patience(retries=2, backoff=1.0, max_wait=30.0, silence=60.0, total=120.0)
#: What stands in the place of an old result of a tool in a conversation that was shortened.
LEFT_OUT = "[left out, since the conversation is longer than your context: call the tool again if you need it]"


class OpenAIService:
    """See `Service`."""

    name = "openai"

    def __init__(self, chat: ChatEndpoint) -> None:
        self._chat = chat
        weakref.finalize(self, chat.client.close)
        self.sdk, self.endpoint, self.metered = chat.sdk, chat.endpoint, any(chat.price)

    def request(self, brief: str, tools: list[dict[str, Any]], answer_tokens: int, seed: int) -> dict[str, Any]:
        """See `Service.request`. Sampling is left to the engine: a model's makers know best how it reasons."""
        functions = [
            {"name": t["name"], "description": t["description"], "parameters": t["input_schema"]} for t in tools
        ]
        return {
            "model": self.endpoint.model,
            "messages": [{"role": "system", "content": brief}],
            "tools": [{"type": "function", "function": f} for f in functions],
            "max_completion_tokens" if self._chat.dialect.own else "max_tokens": answer_tokens,
            "seed": seed % 2**31,  # what every engine takes
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    def told(self, results: list[ToolResult], text: str) -> list[dict[str, Any]]:
        """See `Service.told`. The text goes into the last result, since many templates want roles to alternate."""
        if not results:
            return [{"role": "user", "content": text}]
        told: list[dict[str, Any]] = []
        for result in results:
            shown = f"Error: {result.text}" if result.is_error else result.text
            more = f"\n\n[{text}]" if result is results[-1] else ""
            told.append({"role": "tool", "tool_call_id": result.id, "content": shown + more})
        return told

    def answer(self) -> ChatAnswer:
        """See `Service.answer`."""
        return ChatAnswer()

    @contextmanager
    def stream(self, body: dict[str, Any], silence: float) -> Iterator[Iterator[str]]:
        """See `Service.stream`. A cap that does not fit into the context beside the prompt is left out: the answer then
        gets what is left, which is less."""
        create: Any = self._chat.client.chat.completions.with_streaming_response.create
        wait = timeout(silence)
        with ExitStack() as opened:
            try:
                response = opened.enter_context(create(**body, timeout=wait))
            except self.sdk.BadRequestError as error:
                if "maximum context length" not in str(error):
                    raise
                uncapped = {k: v for k, v in body.items() if k not in ("max_tokens", "max_completion_tokens")}
                response = opened.enter_context(create(**uncapped, timeout=wait))
            yield response.iter_lines()

    def shorten(self, messages: list[dict[str, Any]]) -> bool:
        """See `Service.shorten`: the older half of what tools have shown, but nothing since the model's last answer."""
        last = max((at for at, m in enumerate(messages) if m["role"] == "assistant"), default=0)
        shown = [m for m in messages[:last] if m["role"] == "tool" and len(m["content"]) > len(LEFT_OUT)]
        for message in shown[: (len(shown) + 1) // 2]:
            message["content"] = LEFT_OUT
        return bool(shown)

    def cost(self, usage: dict[str, int]) -> Cost:
        """See `Service.cost`; the API has one price for tokens in, from a cache or not."""
        into, out = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
        per_in, per_out = self._chat.price
        return Cost((into * per_in + out * per_out) / 1e6, into, out)


def openai_service(spec: str) -> OpenAIService:
    """The service that "openai:MODEL" names, with "@URL" after it, or "@IN/OUT" (its price), or both in that order.

    Raises `UserError` for a malformed one, and as `connect` does.
    """
    model, url, price = read_spec(spec, "proposer")
    return OpenAIService(connect(model, url, price, PATIENCE, "proposer", "use --proposer mutation, which needs none"))
