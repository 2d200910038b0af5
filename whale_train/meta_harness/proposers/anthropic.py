"""A model on the Messages API, through Anthropic's SDK: streamed, with prompt caching and adaptive thinking.

The key is read from ANTHROPIC_API_KEY and appears in no log and no error; the SDK reads ANTHROPIC_BASE_URL.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from whale_envs.errors import UserError, unknown
from whale_envs.services import Endpoint, client, read_key, timeout
from whale_train.meta_harness.proposers.base import Cost
from whale_train.meta_harness.proposers.messages_stream import MessagesAnswer
from whale_train.meta_harness.proposers.service import ToolResult

#: The paper's proposer.
MODEL = "claude-opus-4-7"
#: When platform.claude.com/docs/en/about-claude/pricing said what `PRICES` and `CACHE` say.
PRICED = "2026-09"
#: Dollars a million tokens, input and output. All of these models think adaptively.
PRICES = {
    "claude-opus-4-6": (5.0, 25.0),
    "claude-opus-4-7": (5.0, 25.0),
    "claude-opus-4-8": (5.0, 25.0),
    "claude-opus-5": (5.0, 25.0),
    "claude-sonnet-4-6": (3.0, 15.0),
}
#: What an input token costs that is written to the cache (for 5 minutes) or read from it, beside one that is neither.
CACHE_WRITE, CACHE_READ = 1.25, 0.1
_CACHED = {"type": "ephemeral"}
_SPEC = re.compile(r"anthropic(?::(?P<model>[^@]+)(?:@(?P<into>\d*\.?\d+)/(?P<out>\d*\.?\d+))?)?")


class AnthropicService:
    """See `Service`. `price` is dollars a million tokens in and out, by default that of the table.

    Raises `UserError` for a key that is missing or malformed, a model without a price, a URL that is none.
    """

    name = "anthropic"
    metered = True
    key_name, url_name = "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"

    def __init__(self, model: str = MODEL, price: tuple[float, float] | None = None) -> None:
        self._price = price or price_of(model)
        key = read_key(self.key_name, "use --proposer mutation, which needs none")
        import anthropic  # a second to import, which only those who chose it pay

        self.sdk = anthropic
        self._client = client(anthropic.Anthropic, key, 60.0, self.url_name)
        weakref.finalize(self, self._client.close)
        self.endpoint = Endpoint(model, str(self._client.base_url), key, self.key_name, self.url_name)

    def request(self, brief: str, tools: list[dict[str, Any]], answer_tokens: int, seed: int) -> dict[str, Any]:
        """See `Service.request`; the API knows no seed."""
        return {
            "model": self.endpoint.model,
            "max_tokens": answer_tokens,
            "system": [{"type": "text", "text": brief, "cache_control": _CACHED}],
            "tools": [*tools[:-1], {**tools[-1], "cache_control": _CACHED}],
            "thinking": {"type": "adaptive", "display": "summarized"},
            "cache_control": _CACHED,  # of the last block: the next request reads all of this one from the cache
        }

    def told(self, results: list[ToolResult], text: str) -> list[dict[str, Any]]:
        """See `Service.told`."""
        blocks: list[dict[str, Any]] = []
        for result in results:
            wrong = {"is_error": True} if result.is_error else {}
            blocks.append({"type": "tool_result", "tool_use_id": result.id, "content": result.text, **wrong})
        return [{"role": "user", "content": [*blocks, {"type": "text", "text": text}]}]

    def answer(self) -> MessagesAnswer:
        """See `Service.answer`."""
        return MessagesAnswer()

    @contextmanager
    def stream(self, body: dict[str, Any], silence: float) -> Iterator[Iterator[str]]:
        """See `Service.stream`."""
        create: Any = self._client.messages.with_streaming_response.create  # plain JSON, where the SDK wants its types
        with create(**body, stream=True, timeout=timeout(silence)) as response:
            yield response.iter_lines()

    def shorten(self, messages: list[dict[str, Any]]) -> bool:
        """See `Service.shorten`: never, since other words before its end would make a long prompt new to the cache."""
        return False

    def cost(self, usage: dict[str, int]) -> Cost:
        """See `Service.cost`."""
        fresh, written, read, out = (
            usage.get(kind, 0)
            for kind in ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
        )
        return priced(self._price, fresh, written, read, out)


def priced(price: tuple[float, float], fresh: int, written: int, read: int, out: int) -> Cost:
    """The cost of so many tokens: sent fresh, written to the cache, read from it, put out. `price` is dollars a million
    tokens in and out."""
    dollars = (fresh + written * CACHE_WRITE + read * CACHE_READ) * price[0] + out * price[1]
    return Cost(dollars / 1e6, fresh + written + read, out)


def price_of(model: str) -> tuple[float, float]:
    """What the table says. Raises `UserError` for a model that is not in it."""
    if model not in PRICES:
        known = unknown(f"model of the anthropic proposer (prices of {PRICED})", model, PRICES)
        raise UserError(f"{known}; or give its price in dollars a million tokens, anthropic:{model}@IN/OUT")
    return PRICES[model]


def anthropic_service(spec: str) -> AnthropicService:
    """The service that "anthropic" names, or "anthropic:MODEL", with "@IN/OUT" after it for another price than the
    table's. Raises `UserError` as `read_spec` and `AnthropicService` do."""
    return AnthropicService(*read_spec(spec))


def read_spec(spec: str) -> tuple[str, tuple[float, float] | None]:
    """The model that a proposer's name asks for, and the price in it. Raises `UserError` for a malformed one."""
    found = _SPEC.fullmatch(spec)
    if found is None:
        raise UserError(
            f"proposer {spec!r}: expected anthropic, anthropic:MODEL, or anthropic:MODEL@IN/OUT with its price in "
            "dollars a million tokens"
        )
    price = (float(found["into"]), float(found["out"])) if found["into"] else None
    return found["model"] or MODEL, price
