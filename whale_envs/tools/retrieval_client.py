"""A retriever behind a server that speaks Search-R1's `POST /retrieve` (see `whale_envs.tools.retrieval_server`)."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Sequence
from typing import Any

import httpx2
import msgspec

from whale_envs.data.corpus import from_contents
from whale_envs.errors import EpisodeError, UserError
from whale_envs.harness.helpers import Passage
from whale_envs.harness.wire import clean
from whale_envs.tools.retrieval import Retriever

#: How often a request is made before it is given up, and seconds to wait after the first failure; then twice as long.
ATTEMPTS, WAIT = 6, 0.1
#: Seconds that a server may take to answer.
TIMEOUT = 30.0


class _Document(msgspec.Struct):
    id: str | int
    contents: str


class _Hit(msgspec.Struct):
    document: _Document
    score: float


class _Answer(msgspec.Struct):
    result: list[list[_Hit]]


class RemoteRetriever(Retriever):
    """Searches by asking the server at `url`, e.g. "http://127.0.0.1:8000" (with or without "/retrieve").

    A server that is busy or gone for a moment is asked again. Raises `UserError` at once when nothing there answers
    as it should, and later `EpisodeError` owned by the tool when the server has failed for good.
    """

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url.rstrip("/").removesuffix("/retrieve") + "/retrieve"
        self._clients: dict[int, httpx2.Client] = {}  # by process: a forked one must not read its parent's connections
        weakref.finalize(self, _close, self._clients)
        self._decoder = msgspec.json.Decoder(_Answer, strict=False)
        try:
            self.search_batch(["hello"], 1)
        except EpisodeError as error:
            raise UserError(f"{error}; expected the URL of a running whale serve-retrieval, or the like") from None

    def search_batch(self, queries: Sequence[str], k: int, threads: int = 1) -> list[list[Passage]]:
        """See `Retriever.search_batch`; the server decides about threads."""
        answer = self._ask({"queries": [clean(q) for q in queries], "topk": k, "return_scores": True})
        if len(answer.result) != len(queries):
            raise EpisodeError("tool", f"{self.url} gave {len(answer.result)} results for {len(queries)} queries")
        return [
            [from_contents(str(h.document.id), h.document.contents, round(h.score, 4)) for h in hits[:k]]
            for hits in answer.result
        ]

    def _ask(self, body: dict[str, Any]) -> _Answer:
        if (process := os.getpid()) not in self._clients:
            self._clients[process] = httpx2.Client(timeout=TIMEOUT, trust_env=False)
        said = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(WAIT * 2 ** (attempt - 1))
            try:
                response = self._clients[process].post(self.url, json=body)
            except (httpx2.RequestError, httpx2.InvalidURL, UnicodeError) as error:  # the last for a host such as a..b
                said = f"cannot reach {self.url}: {error or type(error).__name__}"
                continue
            if response.status_code == 200:
                try:
                    return self._decoder.decode(response.content)
                except (msgspec.DecodeError, RecursionError) as error:
                    raise EpisodeError("tool", f"{self.url} answered in another form: {error}") from None
            text = response.content[:200].decode(errors="replace")  # its charset may be none
            said = f"{self.url} answered {response.status_code}: {text}"
            if response.status_code < 500 and response.status_code != 429:
                break  # asking the same again will not help
        raise EpisodeError("tool", " ".join(said.split()))


def _close(clients: dict[int, httpx2.Client]) -> None:
    if (process := os.getpid()) in clients:
        clients[process].close()
