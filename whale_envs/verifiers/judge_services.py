"""The services that a judge model is asked at: the Messages API and the Chat Completions API, behind one interface.

Failures are bounded and sorted. What asking again can mend (429, 5xx, a connection that fails or stays silent) is
asked again, `RETRIES` times and for at most `PATIENCE` seconds, then it is a `ServiceError`, as any other refusal of a
request is. A key, an account or an address that is refused is the user's to mend: `UserError`. Keys are read from the
environment and appear in no error.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

from whale_envs.errors import UserError, unknown
from whale_envs.services import TRANSIENT, USERS, read_key, retry_after

#: The longest reply, in tokens: a word, or what a small model thinks before it.
MAX_TOKENS = 512
#: How often a request is sent again; seconds before it is, doubled each time; the longest such wait, whatever the
#: service asks for; seconds without a word after which a connection counts as dead; seconds for all of it together.
RETRIES, BACKOFF, MAX_WAIT, SILENCE, PATIENCE = 4, 1.0, 30.0, 60.0, 180.0
_OTHERWISE = "choose a verifier that needs no judge"


@dataclass(frozen=True)
class Said:
    """A reply, and the tokens that it cost."""

    text: str
    prompt_tokens: int
    sampled_tokens: int


class ServiceError(Exception):
    """A request that was not answered; one line."""


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
        self._key = read_key(self.key_name, _OTHERWISE)
        self._client = _client(anthropic.Anthropic, self._key, self.url_name)
        self.url = str(self._client.base_url)

    def ask(self, system: str, user: str) -> Said:
        """See `Service.ask`."""
        create: Any = self._client.messages.create
        message = _asked(
            self,
            self._sdk,
            lambda: create(
                model=self.model,
                max_tokens=MAX_TOKENS,
                system=system,
                messages=[{"role": "user", "content": user}],
                extra_body={"temperature": 0},  # the SDK names it no more, since the newest models refuse it
            ),
        )
        try:
            text = "".join(block.text for block in message.content if block.type == "text")
            return Said(text, message.usage.input_tokens, message.usage.output_tokens)
        except (AttributeError, TypeError):  # the SDK takes any JSON for an answer
            raise ServiceError(_line(self, "it answers in another form than the API's")) from None

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
        keyless = bool(os.environ.get(self.url_name)) and not os.environ.get(self.key_name)
        self._key = "none" if keyless else read_key(self.key_name, _OTHERWISE)
        self._client = _client(openai.OpenAI, self._key, self.url_name)
        self.url = str(self._client.base_url)

    def ask(self, system: str, user: str) -> Said:
        """See `Service.ask`."""
        create: Any = self._client.chat.completions.create
        reply = _asked(
            self,
            self._sdk,
            lambda: create(
                model=self.model,
                max_tokens=MAX_TOKENS,
                temperature=0,
                messages=[{"role": "system", "content": system}, {"role": "user", "content": user}],
            ),
        )
        try:
            text = reply.choices[0].message.content or ""
            return Said(text, reply.usage.prompt_tokens, reply.usage.completion_tokens)
        except (AttributeError, TypeError, IndexError):  # as above; a server may also leave the usage out
            raise ServiceError(_line(self, "it answers in another form than the API's, or without usage")) from None

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


def _client(make: Callable[..., Any], key: str, url_name: str) -> Any:
    import httpx2

    try:  # the SDKs wait for as long as a service asks them to, be it days: asking again is done here
        return make(api_key=key, max_retries=0, timeout=httpx2.Timeout(SILENCE, connect=10.0))
    except httpx2.InvalidURL as error:
        raise UserError(f"{url_name} {os.environ.get(url_name)!r}: {error}") from None


def _asked(service: AnthropicService | OpenAIService, sdk: ModuleType, send: Callable[[], Any]) -> Any:
    """What a request is answered with; the two SDKs have the same errors."""
    deadline = time.monotonic() + PATIENCE
    jitter = random.Random()  # so that many threads do not come back all at once; decides no result
    for attempt in range(RETRIES + 1):
        wait = 0.0
        try:
            return send()
        except sdk.APITimeoutError:
            failure = f"nothing was heard for {SILENCE:g} s"
        except sdk.APIStatusError as error:
            failure = f"HTTP {error.status_code} ({getattr(error, 'api_message', None) or error.message})"
            wait = _wait(service, error, _line(service, failure))
        except (sdk.APIError, ValueError) as error:  # ValueError: a body that is no JSON of the API's kind
            failure = f"{type(error).__name__}: {error}"
        wait = min(wait or BACKOFF * 2**attempt * jitter.uniform(0.75, 1.0), MAX_WAIT)
        if attempt == RETRIES or time.monotonic() + wait > deadline:
            break
        time.sleep(wait)
    raise ServiceError(_line(service, f"{failure} (asked {attempt + 1} times)"))


def _wait(service: AnthropicService | OpenAIService, error: Any, line: str) -> float:
    """The seconds that the service asks to wait, 0 for none. Raises when asking again would not help."""
    status = error.status_code
    if status in USERS:
        raise UserError(f"{line}: {USERS[status].format(key=service.key_name, url=service.url_name)}") from None
    if status not in TRANSIENT and status < 500:
        raise ServiceError(line) from None
    return retry_after(error.response)


def _line(service: AnthropicService | OpenAIService, text: str) -> str:
    """One line that says who failed, without the key: a service may say it back."""
    hidden = f"{service.model} at {service.url}: {text}".replace(service._key, "(the key)")
    return " ".join(hidden.split())[:400]
