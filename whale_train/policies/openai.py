"""A policy over any endpoint that speaks the Chat Completions API: vLLM, llama.cpp, OpenAI and other hosted ones.

Covers: many requests at once, in threads; asking again with backoff and for as long as the service wants (429, 5xx,
connections that fail or stay silent, bodies that are no answer); quiet for all requests while it limits their rate;
native tool calls; tokens and dollars. Does not cover: streaming, images, changing the endpoint's weights.
"""

from __future__ import annotations

import hashlib
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any

import msgspec

from whale_envs.episode import Reply
from whale_envs.errors import UserError
from whale_envs.services import Patience, ServiceError, asked, retry_after
from whale_train.policies.base import Ended, Policy, PolicyError, Request, Sampler, Sampling
from whale_train.policies.chat_api import Refused, read_reply, write_request
from whale_train.policies.chat_endpoint import connect, read_spec, response_type, within

#: A reply of 8,192 tokens takes minutes, and none of them is heard before the last; a server that is started again is
#: back within one or two.
PATIENCE = Patience(retries=6, backoff=1.0, max_wait=60.0, silence=600.0, total=1200.0)
#: Requests in a row that were given up after which the endpoint is.
FAILURES = 8
_OTHERWISE = "choose --policy tiny or hf:DIR"


class OpenAIPolicy(Policy):
    """Samples replies at an endpoint.

    A reply has tool calls where the ask has tools. `counted` are the tokens that the endpoint counts, `dollars` what
    they cost. vLLM's replies have token ids and log-probabilities, too. `top_k` is 0 in `sampling` where the endpoint
    takes none. A request that is given up is a `PolicyError`, and so are those that the endpoint refuses; `FAILURES`
    given up in a row, a key that is refused, an address or a model that is not there raise `UserError` from `collect`.
    Replies come in the order in which they arrive.

    Args:
        model: the model's name there.
        url: the base URL, which mostly ends in /v1; None takes OPENAI_BASE_URL, or OpenAI's own. The key is in
            OPENAI_API_KEY; with a URL, none is needed.
        sampling: temperature, top-p, and top-k.
        price: dollars a million tokens in and out; OpenAI's own API needs it.
        max_batch: most requests on their way at once.
        patience: how long is waited, and how often asked again; by default `PATIENCE`.

    Raises `UserError` for a key or URL that is missing, malformed or refused, an endpoint that does not answer, a model
    that it does not know.
    """

    _path = "/chat/completions"

    def __init__(
        self,
        model: str,
        url: str | None = None,
        sampling: Sampling | None = None,
        price: tuple[float, float] | None = None,
        max_batch: int = 64,
        patience: Patience | None = None,
    ) -> None:
        self.name = f"openai:{model}"
        self.max_batch, self._patience = max_batch, patience or PATIENCE
        chat = connect(model, url, price, self._patience, "policy", _OTHERWISE)
        self._sdk, self._client, self._endpoint = chat.sdk, chat.client, chat.endpoint
        weakref.finalize(self, self._client.close)
        self._dialect, self._price = chat.dialect, chat.price
        sampling = sampling or Sampling()
        self.sampling = sampling if self._dialect.extras else msgspec.structs.replace(sampling, top_k=0)
        self._quiet = _Quiet()
        self._failures, self._lock = 0, threading.Lock()

    @property
    def weights_hash(self) -> str:
        """12 hex digits of a hash of the model's name, the base URL and the sampling."""
        decisive = f"{self._endpoint.model} {self._endpoint.url} {self.sampling}"
        return hashlib.sha256(decisive.encode()).hexdigest()[:12]

    def sampler(self) -> Sampler:
        """See `Policy.sampler`."""
        return ThreadSampler(self._answer, self.max_batch)

    def _answer(self, request: Request, closed: threading.Event) -> Reply | PolicyError:
        """What becomes of a request; called in many threads."""
        try:
            body = self._write(request)
        except ValueError as error:
            return PolicyError(str(error))
        try:
            try:
                reply = self._send(body, request, closed)
            except ServiceError as error:
                if "maximum context length" not in str(error):
                    raise
                # prompt and cap together are too long: without a cap, the reply gets what is left, which is less
                body = {key: value for key, value in body.items() if key not in ("max_tokens", "max_completion_tokens")}
                reply = self._send(body, request, closed)
        except (ServiceError, Refused) as error:
            return self._failed(error)
        self._failures = 0
        return reply

    def _send(self, body: dict[str, Any], request: Request, closed: threading.Event) -> Reply:
        total = self._patience.total

        def send() -> Reply:
            self._quiet.wait(closed)
            try:
                response = within(total, lambda: self._client.post(self._path, cast_to=response_type(), body=body))
            except Empty:  # it is not silent, but says a byte now and then
                late = self._endpoint.line(f"an answer was not whole after {total:g} s")
                raise ServiceError(late, transient=True) from None
            except self._sdk.RateLimitError as error:
                self._quiet.keep(min(retry_after(error.response), self._patience.max_wait))
                raise
            return self._read(response.content, request)

        reply: Reply = asked(self._endpoint, self._sdk, send, self._patience, closed.wait)
        return reply

    def _write(self, request: Request) -> dict[str, Any]:
        """The body that is sent for a request. Raises `ValueError` for what the endpoint cannot be asked."""
        return write_request(request, self._endpoint.model, self.sampling, self._dialect)

    def _read(self, body: bytes, request: Request) -> Reply:
        """The reply in an answer. Raises `ValueError` for a body that is no answer, and `Refused`."""
        return read_reply(body, request.ask.stop, self._dialect, self._price)

    def _failed(self, error: ServiceError | Refused) -> PolicyError:
        """The error of a request. Raises `UserError` when too many have been given up in a row."""
        if isinstance(error, Refused):
            return PolicyError(self._endpoint.line(str(error)))
        if error.transient:
            with self._lock:
                self._failures += 1
                if self._failures >= FAILURES:
                    raise UserError(f"{error}, {FAILURES} requests in a row: mend it, then run the same again")
        return PolicyError(str(error))


def load_endpoint(spec: str, sampling: Sampling | None = None, max_batch: int = 64) -> OpenAIPolicy:
    """The policy that "openai:MODEL" names, with "@URL" after it, or "@IN/OUT" (its price), or both in that order.

    Raises `UserError` for a malformed one, and as `OpenAIPolicy` does.
    """
    model, url, price = read_spec(spec, "policy")
    return OpenAIPolicy(model, url, sampling, price, max_batch)


class _Closed(Exception):
    """The sampler was closed while a request waited."""


class _Quiet:
    """Where requests wait while the service wants none: what one of them was told holds for all."""

    def __init__(self) -> None:
        self._until = 0.0

    def keep(self, seconds: float) -> None:
        """No request for so long."""
        self._until = max(self._until, time.monotonic() + seconds)

    def wait(self, closed: threading.Event) -> None:
        """Wait until requests may be made. Raises `_Closed`."""
        while (left := self._until - time.monotonic()) > 0 and not closed.wait(left):
            pass
        if closed.is_set():
            raise _Closed


class ThreadSampler(Sampler):
    """A sampler whose requests are answered in threads, at most `threads` of them.

    They are daemons: a request that is on its way when the sampler is closed ends by itself, and nobody waits for it.
    """

    def __init__(self, answer: Callable[[Request, threading.Event], Reply | PolicyError], threads: int) -> None:
        self._answer, self._threads = answer, threads
        self._tickets, self._open, self._started = count(), 0, 0
        self._waiting: SimpleQueue[tuple[int, Request] | None] = SimpleQueue()
        self._ended: SimpleQueue[tuple[int, Reply | PolicyError | BaseException]] = SimpleQueue()
        self._closed = threading.Event()

    def submit(self, requests: Sequence[Request]) -> list[int]:
        """See `Sampler.submit`."""
        tickets = [next(self._tickets) for _ in requests]
        self._open += len(tickets)
        for item in zip(tickets, requests, strict=True):
            self._waiting.put(item)
        while self._started < min(self._threads, self._open):
            self._started += 1
            threading.Thread(target=self._work, daemon=True).start()
        return tickets

    def collect(self) -> list[Ended]:
        """See `Sampler.collect`. Raises what went wrong with more than one request, in whichever it did."""
        ended: list[Ended] = []
        while len(ended) < self._open:
            try:
                ticket, reply = self._ended.get(block=not ended)
            except Empty:
                break
            if isinstance(reply, BaseException) and not isinstance(reply, PolicyError):
                raise reply
            ended.append((ticket, reply))
        self._open -= len(ended)
        return ended

    def close(self) -> None:
        """See `Sampler.close`."""
        self._closed.set()
        for _ in range(self._started):
            self._waiting.put(None)

    def _work(self) -> None:
        while (item := self._waiting.get()) is not None and not self._closed.is_set():
            ticket, request = item
            try:
                reply: Reply | PolicyError | BaseException = self._answer(request, self._closed)
            except _Closed:
                return
            except BaseException as error:  # raised where replies are collected
                reply = error
            self._ended.put((ticket, reply))
