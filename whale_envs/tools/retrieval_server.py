"""A retriever served over HTTP, for envs in many processes or on many machines, and for trainers of others.

    POST /retrieve   {"queries": [...], "topk": 3, "return_scores": true}    as Search-R1 has it
                     -> {"result": [[{"document": {"id", "contents"}, "score"}, ...], ...]}
                     without return_scores -> {"result": [[{"id", "contents"}, ...], ...]}
                     {"query": "...", "top_k": 3}                            as rLLM has it; "k" and "topk" do as well
                     -> {"query", "method", "results": [{"id", "content", "score"}, ...], "num_results"}
    GET /health      -> {"status": "ok", "passages", "queued", "answered"}

While a batch is searched, the requests that arrive wait; those that want as many passages a query as the one that has
waited longest make up the next batch, so that nobody pays for what another asks. At most `queue` queries wait; what
comes on top is answered 503 at once. A request that is malformed gets 400 (or 404, 405, 413) and one line that says
what was expected: `{"error": "..."}`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from whale_envs.data.corpus import contents
from whale_envs.errors import UserError
from whale_envs.harness.helpers import Passage
from whale_envs.tools.retrieval import LocalRetriever

#: Most passages for one query, queries in one request, characters in one query, and bytes in one request.
MAX_TOPK, MAX_QUERIES, MAX_CHARS, MAX_BODY = 1000, 1024, 10_000, 8 << 20
#: Seconds that what was asked before may take once the server is told to stop.
GRACE = 10
#: Connections that wait to be accepted.
BACKLOG = 1024
#: Passages for a query that does not say how many, as Search-R1's server (queries) and rLLM's (query) have it.
QUERIES_K, QUERY_K = 3, 10


@dataclass(frozen=True)
class Asked:
    """A request that is well-formed: its queries, how many passages for each, and the dialect to answer in."""

    queries: list[str]
    k: int
    scores: bool
    single: bool


#: A request, and who waits for its passages.
Waiting = tuple[Asked, asyncio.Future[list[list[Passage]]]]


class Batcher:
    """Answers what is asked concurrently in batches, one batch at a time, in one thread of its own.

    Args:
        retriever: who searches.
        max_batch: most queries in a batch; a larger request is a batch of its own.
        queue: most queries that may wait.
        threads: threads that share a batch.
    """

    def __init__(self, retriever: LocalRetriever, max_batch: int, queue: int, threads: int) -> None:
        self.retriever, self.queued, self.answered = retriever, 0, 0
        self._max_batch, self._queue, self._threads = max_batch, queue, threads
        self._waiting: list[Waiting] = []
        self._arrived = asyncio.Event()

    async def search(self, asked: Asked) -> list[list[Passage]]:
        """The passages for each query. Raises `HTTPException` 503 when too many wait already."""
        if self.queued and self.queued + len(asked.queries) > self._queue:
            raise HTTPException(503, f"{self.queued} queries wait already: ask again later", {"Retry-After": "1"})
        answer: asyncio.Future[list[list[Passage]]] = asyncio.get_running_loop().create_future()
        self._waiting.append((asked, answer))
        self.queued += len(asked.queries)
        self._arrived.set()
        return await answer

    async def run(self) -> NoReturn:
        """Answer until cancelled."""
        while True:
            await self._arrived.wait()
            batch = self._next()
            queries = [q for asked, _ in batch for q in asked.queries]
            try:
                found = await asyncio.to_thread(self.retriever.search_batch, queries, batch[0][0].k, self._threads)
            except Exception as error:  # a bug of ours: those who wait are told, each of them
                for _, answer in batch:
                    if not answer.done():
                        answer.set_exception(error)
                continue
            finally:
                self.queued -= len(queries)
            self.answered += len(queries)
            at = 0
            for asked, answer in batch:
                mine = found[at : at + len(asked.queries)]
                at += len(asked.queries)
                if not answer.done():  # whoever asked may be gone
                    answer.set_result(mine)

    def _next(self) -> list[Waiting]:
        """The request that has waited longest, and those after it that want as many passages, as far as they fit."""
        batch, left, size = self._waiting[:1], list[Waiting](), len(self._waiting[0][0].queries)
        for at, (asked, answer) in enumerate(self._waiting[1:], 1):
            if asked.k != batch[0][0].k:
                left.append((asked, answer))
                continue
            size += len(asked.queries)
            if size > self._max_batch:
                left += self._waiting[at:]
                break
            batch.append((asked, answer))
        self._waiting = left
        if not left:
            self._arrived.clear()
        return batch


def application(retriever: LocalRetriever, max_batch: int = 64, queue: int = 1024, threads: int = 1) -> Starlette:
    """The server as an ASGI application; see `Batcher` for the arguments."""
    batcher = Batcher(retriever, max_batch, queue, threads)

    @contextlib.asynccontextmanager
    async def running(app: Starlette) -> AsyncIterator[None]:
        work = asyncio.create_task(batcher.run())
        yield
        work.cancel()

    async def retrieve(request: Request) -> Response:
        try:
            asked = parse(await read_body(request))
            found = await batcher.search(asked)
        except ClientDisconnect:
            return Response()  # nobody is there to read it
        except asyncio.CancelledError:  # it was not done when the time to stop had passed
            raise HTTPException(503, "the server was stopped: ask another one") from None
        return _json(_single(asked, found[0]) if asked.single else _several(asked, found))

    async def health(request: Request) -> Response:
        counts = {"passages": len(retriever.passages), "queued": batcher.queued, "answered": batcher.answered}
        return _json({"status": "ok", **counts})

    async def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return _json({"error": error.detail}, error.status_code, error.headers)

    return Starlette(
        routes=[Route("/retrieve", retrieve, methods=["POST"]), Route("/health", health, methods=["GET"])],
        exception_handlers={HTTPException: refuse},
        lifespan=running,
    )


async def read_body(request: Request) -> bytes:
    """A request's body. Raises `HTTPException` 413 for one that is too large; Starlette's own limit answers no JSON."""
    said = request.headers.get("content-length", "")
    too_large = HTTPException(413, f"the body: expected at most {MAX_BODY:,} bytes")
    if said.isdecimal() and int(said[:20]) > MAX_BODY:
        raise too_large
    read = bytearray()
    async for part in request.stream():
        read += part
        if len(read) > MAX_BODY:
            raise too_large
    return bytes(read)


def parse(body: bytes) -> Asked:
    """What a request asks for. Raises `HTTPException` 400 with what was expected."""
    try:
        asked = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HTTPException(400, f"the body is no JSON ({error}): expected an object with queries or query") from None
    if not isinstance(asked, dict) or ("queries" in asked) == ("query" in asked):
        raise HTTPException(400, 'expected {"queries": [...], "topk": k} or {"query": "...", "top_k": k}')
    single = "query" in asked
    queries = [asked["query"]] if single else asked["queries"]
    if not isinstance(queries, list) or not 1 <= len(queries) <= MAX_QUERIES:
        raise HTTPException(400, f"queries: expected a list of 1 to {MAX_QUERIES} strings")
    for query in queries:
        if not isinstance(query, str) or len(query) > MAX_CHARS:
            raise HTTPException(400, f"each query: expected a string of at most {MAX_CHARS} characters")
    scores = asked.get("return_scores")
    if scores not in (None, True, False):
        raise HTTPException(400, f"return_scores: expected true or false, not {scores!r:.40}")
    return Asked(queries, _k(asked, single), bool(scores), single)


def _k(asked: dict[str, Any], single: bool) -> int:
    given = [(name, asked[name]) for name in ("topk", "top_k", "k") if asked.get(name) is not None]
    name, k = given[0] if given else ("topk", QUERY_K if single else QUERIES_K)
    if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= MAX_TOPK:
        raise HTTPException(400, f"{name}: expected a number from 1 to {MAX_TOPK}, not {k!r:.40}")
    return k


def _several(asked: Asked, found: Sequence[Sequence[Passage]]) -> dict[str, Any]:
    rows = [[({"id": p.id, "contents": contents(p)}, p.score) for p in passages] for passages in found]
    if asked.scores:
        return {"result": [[{"document": document, "score": score} for document, score in row] for row in rows]}
    return {"result": [[document for document, _ in row] for row in rows]}


def _single(asked: Asked, found: Sequence[Passage]) -> dict[str, Any]:
    results = [{"id": p.id, "content": contents(p), "score": p.score} for p in found]
    return {"query": asked.queries[0], "method": "bm25", "results": results, "num_results": len(results)}


def _json(value: Any, status: int = 200, headers: Any = None) -> Response:
    return Response(msgspec.json.encode(value), status, headers, media_type="application/json")


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0 takes any that is free. Raises `UserError` when it cannot be had."""
    listening = None
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)  # from now on, whoever connects waits until the server answers
    except (OSError, UnicodeError) as error:  # the latter for a name that can be none, such as "127.0.0..1"
        if listening is not None:
            listening.close()
        why = getattr(error, "strerror", None) or error
        raise UserError(f"cannot listen on {host}:{port}: {why}; give another --host or --port") from None
    return listening


def serve(app: Starlette, listening: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM; what was asked before is still answered, in `GRACE` seconds."""
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=GRACE)
    uvicorn.Server(config).run(sockets=[listening])
