"""The services that a judge model is asked at: the Messages API and the Chat Completions API, behind one interface.

Failures are bounded and sorted as `whale_envs.services` says.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from whale_envs.errors import unknown
from whale_envs.services import Endpoint, Patience, ServiceError, asked, client, openai_key, read_key

#: The longest reply, in tokens: a word, or what a small model thinks before it.
MAX_TOKENS = 512
PATIENCE = Patience(retries=4, backoff=1.0, max_wait=30.0, silence=60.0, total=180.0)
_OTHERWISE = "choose a verifier that needs no judge"


@dataclass(frozen=True)
class Said:
    """A reply, and the tokens that it cost."""

    text: str
    prompt_tokens: int
    sampled_tokens: int


class Service(Protocol):
    """Where a model is asked. Calls may come from any thread."""

    #: The base URL.
    url: str

    def ask(self, system: str, user: str) -> Said:
        """The model's reply at temperature 0. Raises `ServiceError`, and `UserError` for what the user must mend."""

    def close(self) -> None:
        """Close its connections. May be called again."""


class AnthropicService:
    """A model on the Messages API: ANTHROPIC_API_KEY, and ANTHROPIC_BASE_URL where it is not Anthropic's own."""

    key_name, url_name = "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"

    def __init__(self, model: str) -> None:
        import anthropic  # a second to import, which only those who chose a judge pay

        self.model, self._sdk = model, anthropic
        key = read_key(self.key_name, _OTHERWISE)
        self._client = client(anthropic.Anthropic, key, PATIENCE.silence, self.url_name)
        self.url = str(self._client.base_url)
        self._endpoint = Endpoint(model, self.url, key, self.key_name, self.url_name)

    def ask(self, system: str, user: str) -> Said:
        """See `Service.ask`."""
        create: Any = self._client.messages.create
        message = asked(
            self._endpoint,
            self._sdk,
            lambda: create(
                model=self.model,
                max_tokens=MAX_TOKENS,
                system=system,
                messages=[{"role": "user", "content": user}],
                extra_body={"temperature": 0},  # the SDK names it no more, since the newest models refuse it
            ),
            PATIENCE,
        )
        try:
            text = "".join(block.text for block in message.content if block.type == "text")
            return Said(text, message.usage.input_tokens, message.usage.output_tokens)
        except (AttributeError, TypeError):  # the SDK takes any JSON for an answer
            raise ServiceError(self._endpoint.line("it answers in another form than the API's")) from None

    def close(self) -> None:
        """See `Service.close`."""
        self._client.close()


class OpenAIService:
    """A model on the Chat Completions API, OpenAI's own or a compatible server's (vLLM, llama.cpp, Ollama):
    OPENAI_API_KEY, and OPENAI_BASE_URL for the latter, which may want no key."""

    key_name, url_name = "OPENAI_API_KEY", "OPENAI_BASE_URL"

    def __init__(self, model: str) -> None:
        import openai  # as above

        self.model, self._sdk = model, openai
        key = openai_key(_OTHERWISE, own_server=bool(os.environ.get(self.url_name)))
        self._client = client(openai.OpenAI, key, PATIENCE.silence, self.url_name)
        self.url = str(self._client.base_url)
        self._endpoint = Endpoint(model, self.url, key, self.key_name, self.url_name)

    def ask(self, system: str, user: str) -> Said:
        """See `Service.ask`."""
        create: Any = self._client.chat.completions.create
        reply = asked(
            self._endpoint,
            self._sdk,
            lambda: create(
                model=self.model,
                max_tokens=MAX_TOKENS,
                temperature=0,
                messages=[{"role": "system", "content": system}, {"role": "user", "content": user}],
            ),
            PATIENCE,
        )
        try:
            text = reply.choices[0].message.content or ""
            return Said(text, reply.usage.prompt_tokens, reply.usage.completion_tokens)
        except (AttributeError, TypeError, IndexError):  # as above; a server may also leave the usage out
            raise ServiceError(
                self._endpoint.line("it answers in another form than the API's, or without usage")
            ) from None

    def close(self) -> None:
        """See `Service.close`."""
        self._client.close()


SERVICES: dict[str, Callable[[str], AnthropicService | OpenAIService]] = {
    "anthropic": AnthropicService,
    "openai": OpenAIService,
}


def connect(provider: str, model: str) -> Service:
    """The service of a provider ("anthropic" or "openai") for one of its models.

    Raises `UserError` for another provider, and for a key or address in the environment that is missing or malformed.
    """
    if provider not in SERVICES:
        raise unknown("provider of a judge", provider, SERVICES)
    return SERVICES[provider](model)
