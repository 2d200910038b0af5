"""What every service with a model behind it has in common: keys from the environment, whose a refusal is, asking again.

What asking again can mend (429, 5xx, a connection that fails or stays silent, a body that is no answer) is asked
again, within bounds; then it is a `ServiceError`, as any other refusal of a request is. A key, an account or an address
that is refused is the user's to mend: `UserError`. Keys are read from the environment and appear in no error.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from types import ModuleType
from typing import Any

from whale_envs.errors import UserError

#: Characters of the shortest key that is a secret: shorter ones are stand-ins that a server of one's own is given.
SECRET = 8
#: HTTP statuses that asking again can mend, besides 5xx.
TRANSIENT = (408, 409, 429)
#: HTTP statuses that the user must mend, with what is wrong; {key} and {url} name environment variables.
USERS = {
    401: "it does not accept the key in {key}: set a valid one",
    402: "it wants to be paid: see the account's billing",
    403: "the key in {key} may not do that: set another",
    404: "it does not know that address or model: see {url}",
}


class ServiceError(Exception):
    """A request that was not answered; one line. `transient`: another request may fare better."""

    def __init__(self, message: str, transient: bool = False) -> None:
        super().__init__(message)
        self.transient = transient


@dataclass(frozen=True)
class Endpoint:
    """Who is asked: a model at a base URL with a key ("" for none); `key_name` and `url_name` say where the user sets
    the two."""

    model: str
    url: str
    key: str
    key_name: str
    url_name: str

    def line(self, text: str) -> str:
        """One line that says who failed, without the key: a service may say it back."""
        return " ".join(self.without_key(f"{self.model} at {self.url}: {text}").split())[:400]

    def without_key(self, text: str) -> str:
        """The text without the key, if that is a secret."""
        return text.replace(self.key, "(the key)") if len(self.key) >= SECRET else text


@dataclass(frozen=True)
class Patience:
    """How long a service is waited for: how often a request is sent again; seconds before it is, doubled each time;
    the longest such wait, whatever the service asks for; seconds without a word after which a connection counts as
    dead; seconds for all of it together."""

    retries: int
    backoff: float
    max_wait: float
    silence: float
    total: float


def client(make: Callable[..., Any], key: str, silence: float, url_name: str, url: str | None = None) -> Any:
    """The client of an SDK; `url` None leaves it to the SDK to look into the environment.

    Raises `UserError` for what is no URL.
    """
    import httpx2

    given = {"base_url": url} if url else {}
    try:  # the SDKs wait for as long as a service asks them to, be it days: asking again is done here
        return make(api_key=key or "none", max_retries=0, timeout=timeout(silence), **given)
    except httpx2.InvalidURL as error:
        raise UserError(f"{url_name} {url or os.environ.get(url_name)!r}: {error}") from None


def timeout(silence: float) -> Any:
    """What the SDKs take for `silence` seconds without a word, after which a connection counts as dead."""
    import httpx2

    return httpx2.Timeout(silence, connect=min(silence, 10.0))


def asked(
    endpoint: Endpoint,
    sdk: ModuleType,
    send: Callable[[], Any],
    patience: Patience,
    sleep: Callable[[float], object] = time.sleep,
) -> Any:
    """What a request is answered with; the SDKs of Anthropic and OpenAI have the same errors.

    A `ValueError` of `send` stands for a body that is no answer. Raises `ServiceError`, and `UserError` for what the
    user must mend.
    """
    import httpx2

    deadline = time.monotonic() + patience.total
    jitter = random.Random()  # so that many threads do not come back all at once; decides no result
    for attempt in range(patience.retries + 1):
        try:
            return send()
        except (sdk.APIError, httpx2.HTTPError, ValueError) as error:
            failure = described(error, sdk, patience.silence)
            refused = isinstance(error, sdk.APIStatusError)
            wait = _wait(endpoint, error, endpoint.line(failure)) if refused else 0.0
        wait = min(wait or patience.backoff * 2**attempt * jitter.uniform(0.75, 1.0), patience.max_wait)
        if attempt == patience.retries or time.monotonic() + wait > deadline:
            break
        sleep(wait)
    raise ServiceError(endpoint.line(f"{failure} (asked {attempt + 1} times)"), transient=True)


def described(error: Exception, sdk: ModuleType, silence: float) -> str:
    """What went wrong with a request to a service that was to say a word every `silence` seconds."""
    import httpx2

    if isinstance(error, sdk.APITimeoutError | httpx2.TimeoutException):  # httpx2: while an answer is streamed
        return f"nothing was heard for {silence:g} s"
    if isinstance(error, sdk.APIStatusError):
        return f"HTTP {error.status_code} ({getattr(error, 'api_message', None) or error.message})"
    return f"{type(error).__name__}: {error.__cause__ or error}"  # ValueError: a body that is no JSON of the API's kind


def _wait(endpoint: Endpoint, error: Any, line: str) -> float:
    """The seconds that the service asks to wait, 0 for none. Raises when asking again would not help."""
    # OpenAI says with a 429, too, that an account is empty
    status = 402 if getattr(error, "code", None) == "insufficient_quota" else error.status_code
    if status in USERS:
        what = USERS[status].format(key=endpoint.key_name, url=endpoint.url_name)
        raise UserError(f"{line}: {what}") from None
    if status not in TRANSIENT and status < 500:
        raise ServiceError(line) from None
    return retry_after(error.response)


def read_key(name: str, otherwise: str) -> str:
    """The key in an environment variable; `UserError` if it is missing or malformed, with what to do `otherwise`."""
    key = os.environ.get(name, "").strip()
    if not key or not (key.isascii() and key.isprintable()):
        wrong = "holds characters that no key has" if key else "is not set"
        raise UserError(f"{name} {wrong}: set it to a key, or {otherwise}")
    return key


def openai_key(otherwise: str, own_server: bool) -> str:
    """The key in OPENAI_API_KEY, "" where none is set and a server of one's own may want none; else as `read_key`."""
    return "" if own_server and not os.environ.get("OPENAI_API_KEY") else read_key("OPENAI_API_KEY", otherwise)


def retry_after(response: Any) -> float:
    """The seconds that a service asks to wait, 0 for none: in the header is their number, or a date."""
    asked = response.headers.get("retry-after", "").strip()
    if asked.isdecimal():
        return float(asked)
    try:
        return max(0.0, parsedate_to_datetime(asked).timestamp() - time.time())
    except ValueError:
        return 0.0
