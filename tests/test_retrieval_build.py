"""Index folders: the same files after a kill as without one, and clear words for folders that are something else."""

import gc
import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import bm25s
import pytest

from whale_envs import UserError
from whale_envs.data.kept import cache_folder
from whale_envs.data.search_world import SearchWorld
from whale_envs.tools import retrieval_build
from whale_envs.tools.retrieval import BM25Retriever, open_retriever
from whale_envs.tools.retrieval_build import Step, build_index, printed
from whale_envs.tools.retrieval_index import StoredIndex, read_info
from whale_envs.tools.retrieval_tokens import tokens
from whale_envs.verifiers.judge import load_judge
from whale_train import cli


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """480 passages, gzipped, in the shape of wiki-18."""
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl.gz"
    rows = [{"id": p.id, "contents": f'"{p.title}"\n{p.text}'} for p in SearchWorld(3).passages()]
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    return path


@pytest.fixture(scope="module")
def undisturbed(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of an index that was built without a break."""
    folder = tmp_path_factory.mktemp("index")
    build_index(corpus, folder, 100)
    return files(folder)


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


class Killed(BaseException):
    """Stands in for SIGKILL: nothing catches it."""


def test_a_build_that_dies_before_any_of_its_renames_goes_on_and_ends_with_the_same_files(
    corpus, undisturbed, tmp_path, monkeypatch
):
    """Each attempt gets one rename further than the last, as files and folders appear by renames alone."""
    rename, left = os.replace, 0

    def dying(source, target):
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed
        rename(source, target)

    monkeypatch.setattr(os, "replace", dying)
    out, deaths = tmp_path / "index", 0
    for _ in range(100):
        left = 1
        try:
            build_index(corpus, out, 100)
            break
        except Killed:
            deaths += 1
            assert not (out / "index.json").exists()
    assert deaths >= 12  # plan, 5 shards, terms, 5 shards' scores
    assert files(out) == undisturbed


def test_a_build_that_is_killed_for_real_goes_on_by_the_same_command(corpus, undisturbed, tmp_path, capsys):
    out = tmp_path / "index"
    command = ["index", "build", str(corpus), "--out", str(out), "--shard", "100"]
    process = subprocess.Popen([sys.executable, "-m", "whale_train.cli", *command], stderr=subprocess.DEVNULL)
    while process.poll() is None and not (out / "shard-00002").exists():
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert cli.main(command) == 0
    assert capsys.readouterr().out == f"480 passages, {read_info(out).terms:,} terms, 5 shards\n{out}\n"
    assert files(out) == undisturbed
    assert cli.main(command) == 0  # a third time there is nothing to do
    assert files(out) == undisturbed


def test_a_shard_is_an_index_that_bm25s_itself_opens(corpus, tmp_path):
    build_index(corpus, tmp_path, 1000)
    stored = StoredIndex(tmp_path)
    direct = bm25s.BM25.load(tmp_path / "shard-00000" / "bm25s", mmap=True, load_vocab=False)
    direct.vocab_dict = stored.vocabulary()
    title = stored.passages[7].title
    rows, scores = direct.retrieve([tokens(title)], k=3, show_progress=False)
    found = BM25Retriever.open(tmp_path).search(title, 3)
    assert stored.passages[int(rows[0, 0])].id == found[0].id  # below the first there may be ties, in any order
    assert [round(float(score), 4) for score in scores[0]] == [p.score for p in found]


def test_progress_rises_and_ends_with_everything(corpus, tmp_path):
    steps: list[Step] = []
    build_index(corpus, tmp_path, 100, steps.append, step_every=50)
    reading = [s for s in steps if s.stage == "reading"]
    assert [s.passages for s in reading] == list(range(50, 481, 50))
    assert [s.done for s in reading] == sorted(s.done for s in reading) and reading[0].done > 0
    assert {s.total for s in reading} == {corpus.stat().st_size}
    assert [s.stage for s in steps] == sorted(s.stage for s in steps)  # reading, then scoring
    scoring = [s.done for s in steps if s.stage == "scoring"]
    assert scoring == [0, 100, 200, 300, 400, 480]
    assert all(0 <= s.done <= s.total for s in steps)


def test_reading_holds_one_shard_at_a_time(tmp_path, monkeypatch):
    """The corpus is read no further than the shard that is being counted, and no passage outlives its shard."""
    (path := tmp_path / "c.jsonl").write_text("".join(f'{{"text": "word{i}"}}\n' for i in range(50)))
    count, read_corpus, read, alive = retrieval_build._count, retrieval_build.read_corpus, [], []

    def reading(*args):
        for passage in read_corpus(*args):
            read.append(weakref.ref(passage))
            yield passage

    def counting(passages, folder):
        count(passages, folder)
        del passages
        gc.collect()
        alive.append((len(read), sum(ref() is not None for ref in read)))

    monkeypatch.setattr(retrieval_build, "read_corpus", reading)
    monkeypatch.setattr(retrieval_build, "_count", counting)
    build_index(path, tmp_path / "index", 20)
    assert [seen for seen, _ in alive] == [20, 40, 50]
    assert max(held for _, held in alive) <= 2  # the first one of the shard, and the last


def test_a_corpus_that_is_indexed_on_the_way_is_told_of(corpus, tmp_path, monkeypatch, capsys):
    told = printed("indexing c: ", every=0)
    build_index(corpus, tmp_path / "index", 100, told, step_every=200)
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if "reading" in line] == [
        line for line in lines if re.fullmatch(r"indexing c: reading \d+%, [24]00 passages", line)
    ]
    assert [line for line in lines if "scoring" in line] == [
        f"indexing c: scoring {share}%, 480 passages" for share in (21, 42, 62, 83)
    ]
    monkeypatch.setenv("WHALE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(retrieval_build, "printed", lambda what: printed(what, every=0))
    monkeypatch.setattr(retrieval_build, "SHARD_PASSAGES", 240)
    open_retriever(str(corpus))
    assert f"indexing {corpus}, once: scoring 50%, 480 passages\n" in capsys.readouterr().err
    monkeypatch.setattr(retrieval_build, "SHARD_PASSAGES", 480)
    (tmp_path / "copy.jsonl.gz").write_bytes(corpus.read_bytes())
    open_retriever(str(tmp_path / "copy.jsonl.gz"))  # one step, however long numba compiles: nothing is said
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"WHALE_CACHE": "/w", "XDG_CACHE_HOME": "/x"}, "/w/judge"),
        ({"WHALE_CACHE": "", "XDG_CACHE_HOME": "/x"}, "/x/whale/judge"),
        ({"WHALE_CACHE": "", "XDG_CACHE_HOME": "", "HOME": "/h"}, "/h/.cache/whale/judge"),
    ],
)
def test_one_folder_holds_all_that_is_cached(variables, expected, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
    assert cache_folder("judge") == load_judge("judge:openai:m@0/0").folder == Path(expected)


def test_a_row_that_is_no_passage_names_its_line_and_after_a_repair_the_build_must_start_anew(tmp_path):
    (path := tmp_path / "c.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n{"txt": "c"}\n')
    out = tmp_path / "index"
    with pytest.raises(UserError, match=r"c.jsonl:3 is no passage"):
        build_index(path, out, 1)
    with pytest.raises(UserError, match="not finished: run whale index build again"):
        BM25Retriever.open(out)
    path.write_text('{"text": "a"}\n{"text": "b"}\n{"text": "c"}\n')
    with pytest.raises(UserError, match=r"holds the index of .* as it was, or with other options: remove the folder"):
        build_index(path, out, 1)


def test_a_build_that_came_to_nothing_leaves_its_folder_to_the_next_one(tmp_path):
    (path := tmp_path / "c.jsonl").write_text('{"text": "a"}\n{"txt": "b"}\n')
    out = tmp_path / "index"
    with pytest.raises(UserError, match=r"c.jsonl:2 is no passage"):
        build_index(path, out)
    path.write_text('{"text": "a"}\n{"text": "b"}\n')
    assert build_index(path, out).passages == 2
    assert [p.text for p in StoredIndex(out).passages] == ["a", "b"]


@pytest.mark.parametrize(
    "name",
    [
        "vocab.index.json",
        "shard-00001/passages.jsonl",
        "shard-00001/offsets.npy",
        "shard-00000/bm25s/params.index.json",
        "shard-00000/bm25s/data.csc.index.npy",
    ],
)
@pytest.mark.parametrize("content", [None, b"", b"x"])
def test_a_file_of_an_index_that_is_gone_or_damaged_is_one_line(corpus, tmp_path, name, content):
    build_index(corpus, tmp_path / "index", 100)
    path = tmp_path / "index" / name
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(UserError, match=r"damaged") as error:
        BM25Retriever.open(tmp_path / "index")
    assert str(tmp_path / "index") in str(error.value) and "\n" not in str(error.value)
    if name.startswith("shard"):  # the vocabulary takes its time to read, and whoever opens the index reads it
        with pytest.raises(UserError, match=r"damaged .*: remove the folder, and build the index again"):
            build_index(corpus, tmp_path / "index", 100)


def test_folders_that_are_something_else_are_refused(corpus, tmp_path, monkeypatch):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"holds other files \(notes.txt\)"):
        build_index(corpus, tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "plan.json").write_text('{"of": "something else"}')
    with pytest.raises(UserError, match=r"holds other files \(plan.json\)"):
        build_index(corpus, tmp_path / "other")
    with pytest.raises(UserError, match="is no index: expected a folder that whale index build has written"):
        BM25Retriever.open(tmp_path)
    with pytest.raises(UserError, match="cannot write to"):
        build_index(corpus, tmp_path / "notes.txt")
    build_index(corpus, tmp_path / "index", 100)
    with pytest.raises(UserError, match="with other options"):
        build_index(corpus, tmp_path / "index", 200)
    written = json.loads((tmp_path / "index" / "index.json").read_text())
    written["plan"]["format"] = 0
    (tmp_path / "index" / "index.json").write_text(json.dumps(written))
    with pytest.raises(UserError, match="has form 0, this version reads 1: build it again"):
        BM25Retriever.open(tmp_path / "index")
    (tmp_path / "index" / "index.json").write_text("{")
    with pytest.raises(UserError, match=r"cannot read .*index.json"):
        BM25Retriever.open(tmp_path / "index")


def test_two_that_build_the_same_index_at_once_do_not_disturb_each_other(corpus, undisturbed, tmp_path):
    with ThreadPoolExecutor(2) as pool:  # the lock is on the open file, so threads stand in for processes
        list(pool.map(lambda _: build_index(corpus, tmp_path / "index", 100), range(2)))
    assert files(tmp_path / "index") == undisturbed


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("index", "build", "none.jsonl", "--out", "x"), r"cannot read none.jsonl: No such file"),
        (("index", "build", "none.jsonl", "--out", "x", "--shard", "0"), "--shard 0: expected 1 to 2,147,483,647"),
        (("index", "search", "none.jsonl", "x"), "cannot read none.jsonl"),
        (("serve-retrieval", "x", "--port", "70000"), "--port 70000: expected 0 to 65535"),
        (("serve-retrieval", "http://127.0.0.1:1"), "is a server already"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line(argv, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(argv) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_search_from_the_command_line_prints_its_results_and_nothing_else(corpus, tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("WHALE_CACHE", str(tmp_path / "cache"))
    build_index(corpus, tmp_path / "index")
    open_retriever(str(corpus))  # a first time its index is built, which is told of when it takes long
    capfd.readouterr()
    for where in (tmp_path / "index", corpus):
        assert cli.main(["index", "search", str(where), StoredIndex(tmp_path / "index").passages[5].title]) == 0
        out, err = capfd.readouterr()
        assert err == "" and re.fullmatch(r"(?: *\d+\.\d{4}  [^\n]+\n {10}[^\n]+\n){3}", out), (out, err)


def test_an_index_is_tried_from_the_command_line(corpus, tmp_path, capsys):
    build_index(corpus, tmp_path / "index")
    title = StoredIndex(tmp_path / "index").passages[5].title
    assert cli.main(["index", "search", str(tmp_path / "index"), title, "--k", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[0].endswith(title)
    assert cli.main(["index", "search", str(tmp_path / "index"), "?! zzz"]) == 0
    said = capsys.readouterr()
    assert said.out == "" and said.err == f"no passage of {tmp_path / 'index'} has a word of '?! zzz'\n"
    assert cli.main(["index", "search", str(tmp_path / "index"), title, "--k", "50"]) == 2
