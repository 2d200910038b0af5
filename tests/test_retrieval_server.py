"""The retrieval server and its client: both dialects, concurrency, and what goes wrong."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx2
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException

from whale_envs import UserError, load_harness
from whale_envs.data.search_world import SearchWorld
from whale_envs.env import HarnessEnv
from whale_envs.errors import EpisodeError
from whale_envs.harness.helpers import Passage
from whale_envs.tools import retrieval_client
from whale_envs.tools.retrieval import BM25Retriever, open_retriever
from whale_envs.tools.retrieval_build import build_index
from whale_envs.tools.retrieval_client import RemoteRetriever
from whale_envs.tools.retrieval_server import MAX_BODY, application, bound, parse

WORLD = SearchWorld(4)


@contextlib.contextmanager
def served(app: Starlette, ending: int | None = None) -> Iterator[str]:
    """The URL of a server that runs in a thread; at the end it waits `ending` seconds for what it does."""
    with bound("127.0.0.1", 0) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=ending))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="module")
def local() -> BM25Retriever:
    return BM25Retriever.of(WORLD.passages())


@pytest.fixture(scope="module")
def url(local: BM25Retriever) -> Iterator[str]:
    with served(application(local, max_batch=16)) as url:
        yield url


@pytest.fixture(scope="module")
def http() -> Iterator[httpx2.Client]:
    with httpx2.Client(trust_env=False) as client:
        yield client


def test_the_dialect_of_search_r1(url, http, local):
    titles = [p.title for p in local.passages[:3]]
    answer = http.post(f"{url}/retrieve", json={"queries": titles, "topk": 2, "return_scores": True})
    assert answer.status_code == 200
    expected = [
        [{"document": {"id": p.id, "contents": f'"{p.title}"\n{p.text}'}, "score": p.score} for p in found]
        for found in local.search_batch(titles, 2)
    ]
    assert answer.json() == {"result": expected}
    answer = http.post(f"{url}/retrieve", json={"queries": titles, "topk": None})
    assert [[d["id"] for d in row] for row in answer.json()["result"]] == [
        [p.id for p in found] for found in local.search_batch(titles, 3)
    ]


@pytest.mark.parametrize("name", ["top_k", "k", "topk"])
def test_the_dialect_of_rllm(url, http, local, name):
    title = local.passages[0].title
    results = [
        {"id": p.id, "content": f'"{p.title}"\n{p.text}', "score": p.score} for p in local.search_batch([title], 2)[0]
    ]
    answer = http.post(f"{url}/retrieve", json={"query": title, name: 2}).json()
    assert answer == {"query": title, "method": "bm25", "results": results, "num_results": 2}
    assert http.post(f"{url}/retrieve", json={"query": title}).json()["num_results"] == 10


def test_health_says_what_is_served(url, http, local):
    health = http.get(f"{url}/health")
    assert health.status_code == 200
    assert health.json()["status"] == "ok"
    assert health.json()["passages"] == len(local.passages)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "the body is no JSON"),
        (b"\xff", "the body is no JSON"),
        (b"[" * 100_000, "the body is no JSON"),
        (b"[]", 'expected {"queries"'),
        (b"{}", 'expected {"queries"'),
        (b'{"queries": ["x"], "query": "x"}', 'expected {"queries"'),
        (b'{"queries": "x"}', "expected a list of 1 to 1024 strings"),
        (b'{"queries": []}', "expected a list of 1 to 1024 strings"),
        (b'{"queries": [1]}', "each query: expected a string"),
        (b'{"query": null}', "each query: expected a string"),
        (json.dumps({"query": "x" * 10_001}).encode(), "each query: expected a string of at most 10000"),
        (b'{"queries": ["x"], "topk": 0}', "topk: expected a number from 1 to 1000, not 0"),
        (b'{"queries": ["x"], "topk": true}', "topk: expected a number from 1 to 1000, not True"),
        (b'{"query": "x", "top_k": "3"}', "top_k: expected a number from 1 to 1000, not '3'"),
        (b'{"query": "x", "k": 1e99}', "k: expected a number from 1 to 1000"),
        (b'{"queries": ["x"], "return_scores": "yes"}', "return_scores: expected true or false"),
    ],
)
def test_a_malformed_request_is_400_with_one_line(body, said):
    with pytest.raises(HTTPException) as error:
        parse(body)
    assert error.value.status_code == 400
    assert said in error.value.detail
    assert "\n" not in error.value.detail


@pytest.mark.parametrize(
    ("method", "path", "content", "status"),
    [
        ("POST", "/retrieve", b"{", 400),
        ("GET", "/retrieve", None, 405),
        ("POST", "/health", None, 405),
        ("GET", "/else", None, 404),
        ("POST", "/retrieve", b" " * (MAX_BODY + 1), 413),
        ("POST", "/retrieve", (b" " * (1 << 20) for _ in range((MAX_BODY >> 20) + 1)), 413),  # no length is said
    ],
)
def test_every_refusal_comes_over_the_wire_as_json_of_one_line(url, http, method, path, content, status):
    answer = http.request(method, f"{url}{path}", content=content)
    assert answer.status_code == status and answer.headers["content-type"] == "application/json"
    (said,) = answer.json().values()
    assert answer.json() == {"error": said} and said and "\n" not in said
    assert http.get(f"{url}/health").status_code == 200


def test_a_body_of_the_largest_size_is_read(url, http):
    body = json.dumps({"queries": ["x"]}).encode().ljust(MAX_BODY)
    assert http.post(f"{url}/retrieve", content=body).status_code == 200


def test_many_at_once_get_their_own_answers(url, local):
    remote = RemoteRetriever(url)
    questions = [WORLD.question().text for _ in range(200)]
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda q: remote.search(q, 1 + len(q) % 5), questions))
    assert found == [local.search(q, 1 + len(q) % 5) for q in questions]
    assert remote.search_batch(questions, 3) == local.search_batch(questions, 3)


def test_forked_processes_do_not_read_each_others_answers(url, local):
    remote = RemoteRetriever(url)
    titles = [p.title for p in local.passages[:60]]
    children = []
    for child in range(3):
        if (pid := os.fork()) == 0:
            wrong = 1
            try:
                wrong = sum(remote.search_batch([t], 2)[0] != local.search(t, 2) for t in titles[child::3])
            finally:
                os._exit(wrong)
        children.append(pid)
    assert [remote.search(t, 3) for t in titles] == [local.search(t, 3) for t in titles]
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0, 0]


class Slow(BM25Retriever):
    """Searches when it is let to, and notes how large its batches are."""

    def search_batch(self, queries, k, threads=1):
        self.batches.append(len(queries))
        self.ks.append(k)
        assert self.go.wait(30)
        return super().search_batch(queries, k, threads)


@pytest.fixture
def slow() -> Slow:
    retriever = Slow.of(WORLD.passages())
    retriever.batches, retriever.ks, retriever.go = [], [], threading.Event()
    return retriever


def until_queued(http: httpx2.Client, url: str, count: int) -> None:
    for _ in range(3000):
        if http.get(f"{url}/health").json()["queued"] >= count:
            return
        time.sleep(0.01)
    raise AssertionError(f"{count} queries never waited")


def test_nobody_pays_for_the_passages_that_another_asks_for(slow, http, local):
    titles = [p.title for p in local.passages[:7]]
    with served(application(slow, max_batch=3)) as url, ThreadPoolExecutor(30) as pool:

        def ask(title: str, k: int) -> list[str]:
            answer = http.post(f"{url}/retrieve", json={"query": title, "k": k}, timeout=30).json()
            return [found["id"] for found in answer["results"]]

        asked = [(titles[0], 1)]
        answers = [pool.submit(ask, *asked[0])]
        until_queued(http, url, 1)
        for number, k in enumerate((2, 900, 2, 2, 900, 2), 1):  # one after the other, so that their order is known
            asked.append((titles[number], k))
            answers.append(pool.submit(ask, *asked[-1]))
            until_queued(http, url, number + 1)
        slow.go.set()
        for (title, k), answer in zip(asked, answers, strict=True):
            assert answer.result() == [p.id for p in local.search_batch([title], k)[0]]
        assert list(zip(slow.ks, slow.batches, strict=True)) == [(1, 1), (2, 3), (900, 2), (2, 1)]


def test_what_arrives_during_a_search_is_one_batch_and_what_is_too_much_is_503(slow, http):
    with served(application(slow, max_batch=8, queue=12)) as url, ThreadPoolExecutor(30) as pool:

        def ask(queries: int) -> int:
            return http.post(f"{url}/retrieve", json={"queries": ["x"] * queries}, timeout=30).status_code

        first = pool.submit(ask, 1)
        until_queued(http, url, 1)
        waiting = [pool.submit(ask, 1) for _ in range(11)]
        until_queued(http, url, 12)
        refused = http.post(f"{url}/retrieve", json={"query": "x"})
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
        assert refused.json() == {"error": "12 queries wait already: ask again later"}
        slow.go.set()
        assert {f.result() for f in (first, *waiting)} == {200}
        assert slow.batches == [1, 8, 3]
        assert ask(100) == 200  # more than the queue holds, but nobody waits
        assert http.get(f"{url}/health").json()["queued"] == 0


def test_a_client_that_hangs_up_costs_the_others_nothing(slow, http):
    with served(application(slow)) as url:
        with pytest.raises(httpx2.ReadTimeout):
            http.post(f"{url}/retrieve", json={"query": "x"}, timeout=0.2)
        slow.go.set()
        assert http.post(f"{url}/retrieve", json={"query": "x"}, timeout=30).status_code == 200


def test_what_a_server_that_ends_does_not_find_in_time_is_503_and_no_traceback(slow, http, capfd):
    with ThreadPoolExecutor(1) as pool:
        with served(application(slow), ending=1) as url:
            asked = pool.submit(http.post, f"{url}/retrieve", json={"query": "x"}, timeout=30)
            until_queued(http, url, 1)
            threading.Timer(2, slow.go.set).start()  # the search itself cannot be stopped
        answer = asked.result()
    assert answer.status_code == 503
    assert answer.json() == {"error": "the server was stopped: ask another one"}
    assert "Traceback" not in capfd.readouterr().err


@contextlib.contextmanager
def scripted(*answers: tuple[int, object], headers: dict[str, str] | None = None) -> Iterator[tuple[str, list[int]]]:
    """A server that gives these answers in turn, the last one again and again; and what it has answered."""
    given: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            status, value = answers[min(len(given), len(answers) - 1)]
            given.append(status)
            body = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.send_response(status)
            for name, content in (headers or {}).items():
                self.send_header(name, content)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", given
        server.shutdown()
        thread.join()


HIT = {"result": [[{"document": {"id": 7, "contents": '"T"\ntext'}, "score": 1}]]}


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(retrieval_client, "WAIT", 0.001)


def test_a_server_that_is_busy_for_a_moment_is_asked_again():
    with scripted((200, HIT), (503, {}), (500, {}), (200, HIT)) as (url, given):
        assert RemoteRetriever(f"{url}/retrieve/").search("x") == [Passage("7", "T", "text", 1.0)]
        assert given == [200, 503, 500, 200]


@pytest.mark.parametrize(
    ("answer", "said", "times"),
    [
        ((503, {"error": "busy"}), "answered 503: .*busy", 6),
        ((400, {"error": "no"}), "answered 400: .*no", 1),
        ((200, {"results": []}), "answered in another form", 1),
        ((200, {"result": []}), "gave 0 results for 1 queries", 1),
    ],
)
def test_a_server_that_fails_for_good_is_the_tools_failure_in_an_episode_and_a_users_mistake_before(
    answer, said, times
):
    with scripted((200, HIT), answer) as (url, given):
        remote = RemoteRetriever(url)
        with pytest.raises(EpisodeError, match=said) as error:
            remote.search("x")
        assert error.value.owner == "tool"
        assert len(given) == 1 + times
        with pytest.raises(UserError, match=said):
            RemoteRetriever(url)


@pytest.mark.parametrize(
    ("status", "headers", "body", "said"),
    [
        (200, {"Content-Encoding": "gzip"}, b"none", "cannot reach"),
        (200, {}, b'{"other":' + b"[" * 9999 + b"]" * 9999 + b"}", "answered in another form"),
        (404, {"Content-Type": "text/html; charset=utf-16"}, b"<html>\xff", "answered 404"),
    ],
)
def test_whatever_else_answers_at_a_url_is_one_line(status, headers, body, said):
    with scripted((status, body), headers=headers) as (url, _), pytest.raises(UserError, match=said):
        RemoteRetriever(url)


def test_a_url_where_nobody_listens_is_one_line():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with pytest.raises(UserError, match=r"cannot reach http://127.0.0.1:\d+/retrieve.*whale serve-retrieval"):
            RemoteRetriever(f"http://127.0.0.1:{free.getsockname()[1]}")
    with pytest.raises(UserError, match=r"cannot reach http://127.0.0..1:80/retrieve: .*label empty"):
        RemoteRetriever("http://127.0.0..1:80")
    with pytest.raises(UserError, match="leave retriever= out"):
        open_retriever("http://127.0.0.1:1", "rank_bm25")


def test_an_episode_is_the_same_with_an_index_and_with_a_server(tmp_path):
    (corpus := tmp_path / "c.jsonl").write_text(
        "".join(json.dumps({"id": p.id, "title": p.title, "text": p.text}) + "\n" for p in WORLD.passages())
    )
    asked = [WORLD.question() for _ in range(8)]
    (questions := tmp_path / "q.jsonl").write_text(
        "\n".join(json.dumps({"question": q.text, "answer": q.answer}) for q in asked)
    )
    build_index(corpus, tmp_path / "index", 200)

    def played(where: object) -> list[object]:
        env = HarnessEnv("search-qa", f"{questions},corpus={where}", load_harness("h0", "search-qa"))
        seen: list[object] = []
        for seed in range(4):
            messages, info = env.reset(seed=seed)
            done = False
            while not done:
                question = messages[-1]["content"]
                messages, reward, terminated, truncated, info = env.step(f"<search>{question}</search>")
                seen.append((messages, reward))
                done = terminated or truncated
            seen.append([c.result for c in info["record"].tool_calls])
        env.close()
        return seen

    with served(application(BM25Retriever.open(tmp_path / "index"))) as url:
        assert played(url) == played(tmp_path / "index")


def test_the_command_serves_until_it_is_told_to_stop(tmp_path):
    (corpus := tmp_path / "c.jsonl").write_text('{"id": "1", "text": "x"}\n')
    command = [sys.executable, "-m", "whale_train.cli", "serve-retrieval", str(corpus), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline()
        assert re.fullmatch(r"1 passages at http://127.0.0.1:\d+\n", line)
        remote = RemoteRetriever(line.split()[-1])
        assert [p.id for p in remote.search("x")] == ["1"]
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in said


def test_a_client_that_goes_away_or_never_ends_leaves_no_traceback(tmp_path):
    (corpus := tmp_path / "c.jsonl").write_text('{"id": "1", "text": "x"}\n')
    code = (
        "import sys; from whale_envs.tools import retrieval_server; retrieval_server.GRACE = 1; "
        f"from whale_train.cli import main; sys.exit(main(['serve-retrieval', {str(corpus)!r}, '--port', '0']))"
    )
    begun = b"POST /retrieve HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
    with subprocess.Popen([sys.executable, "-c", code], stdout=-1, stderr=-1, text=True) as process:
        port = int(process.stdout.readline().rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as gone:
            gone.sendall(begun)
            gone.shutdown(socket.SHUT_WR)
            gone.recv(1000)  # the server has noticed
        with socket.create_connection(("127.0.0.1", port)) as slow:
            slow.sendall(begun)
            RemoteRetriever(f"http://127.0.0.1:{port}")  # by the time of its answer, the other request has begun
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=60)
            assert slow.recv(1000).startswith(b"HTTP/1.1 503")
    assert process.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in said


def test_a_port_that_is_taken_is_one_line():
    said = r"cannot listen on 127.0.0.1:.*give another --host or --port"
    with bound("127.0.0.1", 0) as taken, pytest.raises(UserError, match=said):
        bound("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(UserError, match=r"cannot listen on no.such.host.invalid"):
        bound("no.such.host.invalid", 0)
    with pytest.raises(UserError, match=r"cannot listen on 127.0.0..1:0: .*label empty"):
        bound("127.0.0..1", 0)
