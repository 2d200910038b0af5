"""An endpoint that speaks the Chat Completions API: how it is spelled, and what it is found to be."""

from __future__ import annotations

import os
import queue
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, TypeVar

from whale_envs.errors import UserError, unknown
from whale_envs.services import Endpoint, Patience, ServiceError, asked, client, openai_key
from whale_train.policies.chat_api import DIALECTS, Dialect, read_listing

T = TypeVar("T")
_SPEC = re.compile(r"openai:(?P<model>.+?)(?:@(?P<into>\d*\.?\d+)/(?P<out>\d*\.?\d+))?(?:@(?P<url>https?://.+))?")


@dataclass(frozen=True)
class ChatEndpoint:
    """An endpoint that has answered, or is OpenAI's own: the SDK and its client, who is asked, what it takes, and
    dollars a million tokens in and out."""

    sdk: ModuleType
    client: Any
    endpoint: Endpoint
    dialect: Dialect
    price: tuple[float, float]


def read_spec(spec: str, option: str) -> tuple[str, str | None, tuple[float, float] | None]:
    """(model, URL, price) of "openai:MODEL", with "@URL" after it, or "@IN/OUT" (its price), or both in that order.

    Raises `UserError` for a malformed one; `option` is where it was given ("policy").
    """
    found = _SPEC.fullmatch(spec)
    if found is None:
        raise UserError(
            f"{option} {spec!r}: expected openai:MODEL@http://HOST:PORT/v1, or openai:MODEL@IN/OUT with its price in "
            "dollars a million tokens"
        )
    price = (float(found["into"]), float(found["out"])) if found["into"] else None
    return found["model"], found["url"], price


def connect(
    model: str, url: str | None, price: tuple[float, float] | None, patience: Patience, option: str, otherwise: str
) -> ChatEndpoint:
    """The endpoint of a model at a URL, or at OPENAI_BASE_URL, or OpenAI's own, which needs a price.

    `option` is where the user gave it ("policy"), and `otherwise` what else to choose there. Raises `UserError` for a
    key or URL that is missing, malformed or refused, an endpoint that does not answer, a model that it does not know.
    """
    import openai  # a second to import, which only those who chose it pay

    key = openai_key(otherwise, own_server=bool(url or os.environ.get("OPENAI_BASE_URL")))
    url_name = f"the URL in --{option}" if url else "OPENAI_BASE_URL"
    made = client(openai.OpenAI, key, patience.silence, url_name, url)
    endpoint = Endpoint(model, str(made.base_url), key, "OPENAI_API_KEY", url_name)
    own = made.base_url.host == "api.openai.com"
    try:
        if own and price is None:
            raise UserError(
                f"the price of {model!r} is not known: give dollars a million tokens in and out, e.g. "
                f"--{option} openai:{model}@0.25/2"
            )
        dialect = Dialect(own=True) if own else _find_dialect(openai, made, endpoint, patience)
    except BaseException:
        made.close()
        raise
    return ChatEndpoint(openai, made, endpoint, dialect, price or (0.0, 0.0))


def _find_dialect(sdk: ModuleType, made: Any, endpoint: Endpoint, patience: Patience) -> Dialect:
    """What the endpoint runs, by its list of models; one need not have any. Waited for `patience.total` seconds."""

    def models() -> list[tuple[str, str]]:
        try:
            return read_listing(made.get("/models", cast_to=response_type()).content)
        except sdk.APIStatusError as error:
            if error.status_code in (400, 404, 405, 501):
                return []
            raise

    try:
        found = dict(within(patience.total, lambda: asked(endpoint, sdk, models, replace(patience, retries=2))))
    except queue.Empty:  # it is not silent, but says a byte now and then
        late = endpoint.line(f"its list of models was not whole after {patience.total:g} s")
        raise UserError(f"{late}: start the server, or mend {endpoint.url_name}") from None
    except ServiceError as error:
        raise UserError(f"{error}: start the server, or mend {endpoint.url_name}") from None
    owner = found.get(endpoint.model) or next(iter(found.values()), "")
    if owner == "vllm" and endpoint.model not in found:  # the others go by aliases, too
        raise unknown(f"model of {endpoint.url}", endpoint.model, found)
    return DIALECTS.get(owner, Dialect())


def within(seconds: float, ask: Callable[[], T]) -> T:
    """What `ask` returns or raises, in a thread that is left to itself and raises `queue.Empty` here after `seconds`:
    no time limit of the SDKs is one for a whole answer."""
    said: queue.SimpleQueue[Callable[[], T]] = queue.SimpleQueue()

    def run() -> None:
        try:
            value = ask()
            said.put(lambda: value)
        except BaseException as error:
            said.put(_raising(error))

    threading.Thread(target=run, daemon=True).start()
    return said.get(timeout=seconds)()


def _raising(error: BaseException) -> Callable[[], Any]:
    def raises() -> Any:
        raise error

    return raises


def response_type() -> Any:
    """What the SDK gives back unread; it checks no body."""
    import httpx2

    return httpx2.Response
