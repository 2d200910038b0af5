"""What an agent needs of a service with a model behind it; `anthropic` and `openai` are two.

Answers are put together from streams by our own hand (`messages_stream`, `chat_stream`): the SDKs raise on a tool call
whose input is no JSON, and that must cost one tool call and not the conversation. What a service said stays plain
JSON, so that it can be sent back and logged.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, ClassVar, Literal, Protocol

from whale_envs.services import Endpoint
from whale_train.meta_harness.proposers.base import Cost

#: How an answer ended: by itself ("", a call of a tool among that), cut at the cap on tokens, refused, or because the
#: conversation is longer than the model's context.
End = Literal["", "cut", "refused", "full"]


class StreamError(ValueError):
    """A stream broke off, carries an error, or is none of the service's."""


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool. `wrong` says why its input cannot be read, "" when it can be."""

    id: str
    name: str
    input: dict[str, Any]
    wrong: str = ""


@dataclass(frozen=True)
class ToolResult:
    """What a tool call is answered with."""

    id: str
    text: str
    is_error: bool = False


@dataclass
class Answer(ABC):
    """What a stream has said so far.

    Attributes:
        usage: tokens by kind, in the service's words.
        stop_reason: why the answer ended, in the service's words; "" before that.
        finished: whether the stream has said that the answer has ended.
    """

    usage: dict[str, int] = field(default_factory=dict)
    stop_reason: str = ""
    finished: bool = False

    #: What `stop_reason` means where an answer did not end by itself.
    ENDS: ClassVar[dict[str, End]] = {}

    def take(self, data: str) -> None:
        """Take one event's data. Raises `StreamError` for an error event and for what is no event of the service."""
        try:
            self._take(data)
        except StreamError:
            raise
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
            raise StreamError(f"an event that the API does not have ({type(error).__name__}): {data[:200]}") from None

    @abstractmethod
    def _take(self, data: str) -> None:
        """`take`; an error of another kind than `StreamError` means an event that the service does not have."""

    @property
    def end(self) -> End:
        """How it ended."""
        return self.ENDS.get(self.stop_reason, "")

    @property
    def refusal(self) -> str:
        """Why it was refused, as far as the service says it."""
        return ""

    @property
    @abstractmethod
    def calls(self) -> list[ToolCall]:
        """The tool calls in it, in order."""

    @property
    @abstractmethod
    def received(self) -> Any:
        """What was said, as it came, for the log."""

    @abstractmethod
    def sent_back(self) -> list[dict[str, Any]]:
        """It as messages of the conversation; none where the service takes no empty ones."""


class Service(Protocol):
    """Where a model is asked."""

    #: How people call it ("anthropic").
    name: str
    sdk: ModuleType
    endpoint: Endpoint
    #: Whether tokens cost something; an answer that does not say how many it took is then refused.
    metered: bool

    def request(self, brief: str, tools: list[dict[str, Any]], answer_tokens: int, seed: int) -> dict[str, Any]:
        """What all requests of a conversation have in common; `tools` are as `tool_schemas` gives them."""

    def told(self, results: list[ToolResult], text: str) -> list[dict[str, Any]]:
        """The messages that answer the model: results of its tool calls, in order, and a text."""

    def answer(self) -> Answer:
        """An answer of which nothing has been said."""

    def stream(self, body: dict[str, Any], silence: float) -> AbstractContextManager[Iterator[str]]:
        """Send a request; the lines of what is answered, to be read within the context. `silence` is the seconds
        without a word after which the connection counts as dead. Raises the SDK's errors and those of `httpx2`."""

    def shorten(self, messages: list[dict[str, Any]]) -> bool:
        """Take something out of a conversation that is longer than the model's context; False where nothing can go."""

    def cost(self, usage: dict[str, int]) -> Cost:
        """What an answer cost; nothing for one that does not say how many tokens it took."""


def read_input(text: str) -> tuple[dict[str, Any], str]:
    """(the input of a tool call, "") or ({}, why it cannot be read); nothing at all is no input, which some tools take.

    Line breaks may stand in strings as they are, since models write sources that way.
    """
    try:
        given = json.loads(text or "{}", strict=False)
        if not isinstance(given, dict):
            raise ValueError(f"{type(given).__name__} in place of an object")
    except (ValueError, RecursionError) as error:
        return {}, str(error)
    safe: dict[str, Any] = text_safe(given)
    return safe, ""


def text_safe(value: Any) -> Any:
    """JSON without lone surrogates, which no UTF-8 file or request can hold."""
    return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
