"""Retrieval: the same tokens for the same words, the scores of bm25s and rank_bm25, ties in the corpus's order."""

import gzip
import json
import os
import threading
import unicodedata
from pathlib import Path

import bm25s
import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from real_data import REAL, needs_real_data

from whale_envs import UserError, load_domain
from whale_envs.data.corpus import contents, from_contents, read_corpus
from whale_envs.data.search_world import SearchWorld
from whale_envs.errors import ToolUseError
from whale_envs.harness.helpers import Passage
from whale_envs.tools import retrieval_kernel
from whale_envs.tools.retrieval import BM25Retriever, ReferenceRetriever, open_retriever
from whale_envs.tools.retrieval_build import build_index
from whale_envs.tools.retrieval_tokens import passage_tokens, tokens

words = st.sampled_from("a b c d e éclair ÇA 東京 x1".split())
sentences = st.lists(words, max_size=12).map(" ".join)
corpora = st.lists(st.builds(Passage, st.integers(0, 99).map(str), sentences, sentences), min_size=1, max_size=30)


def write(folder: Path, passages: list[Passage]) -> Path:
    path = folder / "corpus.jsonl"
    path.write_text("".join(json.dumps({"id": p.id, "title": p.title, "text": p.text}) + "\n" for p in passages))
    return path


@given(st.text(), st.sampled_from(["NFC", "NFD", "NFKC", "NFKD"]))
@settings(max_examples=300)
def test_a_text_has_the_same_tokens_however_its_accents_and_its_case_are_encoded(text, form):
    assert tokens(unicodedata.normalize(form, text)) == tokens(text)
    assert tokens(text.casefold()) == tokens(text)


@given(st.text(alphabet=st.one_of(st.characters(max_codepoint=127), st.sampled_from("éßİᾳ東¨ŉ\u0301\u2003"))))
@settings(max_examples=300)
def test_the_fast_ways_to_tokens_give_what_the_rule_gives_for_the_text_as_a_whole(text):
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFD", text).casefold()).casefold()
    plain = "".join(c for c in unicodedata.normalize("NFKD", folded) if not unicodedata.combining(c))
    spaced = "".join(c if c.isalnum() or c == "_" else " " for c in plain)
    assert tokens(text) == spaced.split()


@given(corpora, st.lists(st.lists(words, min_size=1, max_size=6), min_size=1, max_size=5), st.integers(1, 40))
def test_bm25s_and_rank_bm25_give_the_same_scores_for_the_same_tokens(passages, queries, k):
    asked = [tokens(" ".join(query)) for query in queries]
    rows, scores = BM25Retriever.of(passages).rank(asked, k)
    expected_rows, expected = ReferenceRetriever(passages).rank(asked, k + 1)  # the next best may be as good
    width = min(k, len(passages))
    assert np.allclose(scores[:, :width], expected[:, :width], rtol=1e-5)
    for q in range(len(asked)):  # the rows too, where float32 can tell the scores apart
        for i in range(width):
            if not np.isclose(np.delete(expected[q], i), expected[q, i], rtol=1e-4).any():
                assert rows[q, i] == expected_rows[q, i]


@given(passages=corpora, query=st.lists(words, min_size=1, max_size=6), k=st.integers(1, 20), shard=st.integers(1, 12))
@settings(max_examples=12)
def test_memory_and_files_in_shards_give_the_scores_of_bm25s_to_the_last_bit(
    passages, query, k, shard, tmp_path_factory
):
    folder = tmp_path_factory.mktemp("index")
    build_index(write(folder, passages), folder / "index", shard)
    stored, held = BM25Retriever.open(folder / "index"), BM25Retriever.of(passages)
    k = min(k, len(passages))
    asked = tokens(" ".join(query))
    direct = bm25s.BM25()
    direct.index([passage_tokens(p) for p in passages], show_progress=False)
    known = [t for t in asked if t in direct.vocab_dict]
    every = direct.get_scores(known) if known else np.zeros(len(passages), np.float32)
    best = np.argsort(-every, kind="stable")[:k]
    for retriever in (stored, held):
        rows, scores = retriever.rank([asked], k)
        assert scores[0, :k].astype(np.float32).tobytes() == every[best].tobytes()
        assert [r for r in rows[0].tolist() if r >= 0] == [int(r) for r in best if every[r] > 0]
    assert stored.search_batch([" ".join(query)], k) == held.search_batch([" ".join(query)], k)
    assert list(stored.passages) == passages


@given(st.text(), st.integers(1, 20))
@settings(max_examples=60)
def test_any_query_gives_at_most_k_passages_in_falling_order_and_always_the_same(query, k):
    retriever = BM25Retriever.of(
        [Passage(str(i), f"Title {i}", text) for i, text in enumerate(["a b", "b c", "Éclair ça", "c d"])]
    )
    found = retriever.search(query, k)
    assert len(found) <= k
    assert [p.score for p in found] == sorted((p.score for p in found), reverse=True)
    assert found == retriever.search(query, k) == retriever.search_batch([query], k)[0]


@pytest.mark.parametrize("make", [BM25Retriever.of, ReferenceRetriever])
def test_case_and_accents_do_not_matter_and_ties_keep_the_corpus_order(make):
    passages = [Passage("1", "", "crème brûlée"), *(Passage(str(i), "", "x y") for i in range(2, 60))]
    retriever = make(passages)
    assert [p.id for p in retriever.search("CREME BRULEE", 3)] == ["1"]
    assert [p.id for p in retriever.search("x", 20)] == [str(i) for i in range(2, 22)]
    assert retriever.search("nothing of the kind", 3) == []
    assert retriever.search("", 3) == []


def test_a_batch_shared_out_between_threads_finds_what_each_query_finds_alone():
    world = SearchWorld(1)
    retriever = BM25Retriever.of(world.passages())
    queries = [world.question().text for _ in range(101)]
    alone = [retriever.search(query, 3) for query in queries]
    for threads in (1, 2, 7):
        assert retriever.search_batch(queries, 3, threads) == alone
    assert retriever.search_batch([], 3) == []


def test_a_process_that_has_searched_can_be_forked_and_the_child_searches():
    retriever = BM25Retriever.of([Passage(str(i), "", f"x y{i}") for i in range(100)])
    expected = retriever.search_batch(["y5 x"] * 20, 3, threads=2)
    with pytest.raises(ValueError, match="not initialized"):
        numba.threading_layer()  # numba's own threads, which a fork would lose, were never started
    child = os.fork()
    if child == 0:
        os._exit(0 if retriever.search_batch(["y5 x"] * 20, 3, threads=2) == expected else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_where_no_folder_can_keep_what_is_compiled_each_process_compiles(monkeypatch):
    njit = numba.njit

    def without_a_folder(cache=False, **options):
        if cache:
            raise RuntimeError("cannot cache function: no locator available for file")
        return njit(**options)

    monkeypatch.setattr(numba, "njit", without_a_folder)
    assert retrieval_kernel._compiled(lambda x: x + 1)(1) == 2


@pytest.mark.parametrize("query, k", [("x", 0), ("x", 21), ("x", True), ("x", "2"), (None, 1)])
def test_a_search_that_is_not_offered_is_a_tool_use_error(query, k):
    with pytest.raises(ToolUseError):
        BM25Retriever.of([Passage("1", "", "x")]).search(query, k)


def test_the_threads_of_a_batch_stay_for_the_next_one():
    retriever = BM25Retriever.of([Passage(str(i), "", f"x y{i % 7}") for i in range(50)])
    before = set(threading.enumerate())
    retriever.search_batch(["y5 x"] * 20, 3, threads=5)
    started = set(threading.enumerate()) - before
    for _ in range(9):
        retriever.search_batch(["y5 x"] * 20, 3, threads=5)
    now = set(threading.enumerate()) - before
    assert started and started <= now and len(now) <= 5


def test_a_search_gives_passages_of_its_own_with_its_own_scores(tmp_path):
    (path := tmp_path / "c.jsonl").write_text('{"id": "1", "text": "apple pear"}\n{"id": "2", "text": "pear"}\n')
    for retriever in (open_retriever(str(path)), BM25Retriever.of(read_corpus(path))):
        (one,), (other,) = retriever.search("apple"), retriever.search("apple apple")
        assert other.score == pytest.approx(2 * one.score) and one.score > 0
        assert [p.score for p in retriever.passages] == [0, 0]


def test_both_shapes_of_corpus_are_read_plain_and_gzipped(tmp_path):
    rows = [{"id": "1", "title": "T\n", "text": "words"}, {"id": 2, "contents": '"T"\nwords'}, {"contents": "bare"}]
    rows += [{"id": None, "text": "none"}]
    path = tmp_path / "c.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(json.dumps(r) for r in rows).encode()))
    assert list(read_corpus(path)) == [
        Passage("1", "T", "words"),
        Passage("2", "T", "words"),
        Passage("3", "bare", ""),
        Passage("4", "", "none"),
    ]


@given(st.text().map(lambda t: " ".join(t.splitlines()).strip()), st.text())
def test_what_contents_writes_is_read_back_whatever_quotes_a_title_has(title, text):
    passage = Passage("1", title, text)
    assert from_contents("1", contents(passage)) == passage


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"title": "x"}', ":1 is no passage: expected text or contents, found title"),
        ('{"text": "x"}\n[]', ":2 is a JSON list"),
        ('{"text": "\\ud800"}', ":1 is no JSON .it holds half of a surrogate pair"),
        ("", "holds no passage"),
    ],
)
@pytest.mark.parametrize("backend", ["bm25s", "rank_bm25"])
def test_a_malformed_corpus_is_one_line_that_names_the_place(tmp_path, content, said, backend):
    (path := tmp_path / "c.jsonl").write_text(content)
    with pytest.raises(UserError, match=said) as error:
        open_retriever(str(path), backend)
    assert "\n" not in str(error.value)


def test_an_unknown_retriever_and_a_missing_corpus_say_what_was_expected(tmp_path):
    with pytest.raises(UserError, match="unknown retriever 'bm25': expected one of bm25s, rank_bm25; did you mean"):
        open_retriever(str(tmp_path), "bm25")
    with pytest.raises(UserError, match=r"cannot read .*none.jsonl: No such file"):
        open_retriever(str(tmp_path / "none.jsonl"))


@pytest.mark.parametrize("name", ["c.csv", "c.tsv", "c.parquet"])
@pytest.mark.parametrize("backend", ["bm25s", "rank_bm25"])
def test_a_table_of_passages_is_told_how_to_become_jsonl(tmp_path, name, backend):
    (tmp_path / name).write_bytes(b"id,title,text\n1,Paris,A town.\n")
    reads = {"csv": "read_csv", "tsv": "read_table", "parquet": "read_parquet"}[name[2:]]
    with pytest.raises(UserError, match=rf"{name} is a table: expected JSONL .*pandas.{reads}\(.*lines=True") as error:
        open_retriever(str(tmp_path / name), backend)
    assert "\n" not in str(error.value)


def test_an_env_takes_a_corpus_an_index_or_the_reference_by_one_argument(tmp_path):
    world = SearchWorld(2)
    corpus = write(tmp_path, world.passages())
    build_index(corpus, tmp_path / "index", 100)
    asked = [world.question() for _ in range(30)]
    (questions := tmp_path / "q.jsonl").write_text(
        "\n".join(json.dumps({"question": q.text, "answer": q.answer}) for q in asked)
    )
    domains = [
        load_domain("search-qa", f"{questions},corpus={where}")
        for where in (corpus, tmp_path / "index", f"{corpus},retriever=rank_bm25")
    ]
    expected = BM25Retriever.of(world.passages())
    for query in (q.entity for q in asked):
        for domain in domains:
            assert [p.id for p in domain.retriever.search(query, 1)] == [p.id for p in expected.search(query, 1)]


def test_a_corpus_file_is_indexed_once_and_again_when_it_has_changed(tmp_path, monkeypatch):
    monkeypatch.setenv("WHALE_CACHE", str(tmp_path / "cache"))
    corpus = write(tmp_path, [Passage("1", "", "x")])
    for _ in range(2):
        assert [p.id for p in open_retriever(str(corpus)).search("x")] == ["1"]
    assert len(list((tmp_path / "cache/indexes").iterdir())) == 1
    write(tmp_path, [Passage("2", "", "longer x")])
    assert [p.id for p in open_retriever(str(corpus)).search("x")] == ["2"]


@needs_real_data
def test_on_real_passages_the_reference_agrees():
    passages = [p for p, _ in zip(read_corpus(Path(REAL, "qa", "corpus_wiki.jsonl.gz")), range(1000), strict=False)]
    lines = Path(REAL, "qa", "qa_dev_eval.jsonl").read_text().splitlines()[:40]
    questions = [json.loads(line)["question"] for line in lines]
    asked = [tokens(q) for q in questions]
    _, scores = BM25Retriever.of(passages).rank(asked, 10)
    _, expected = ReferenceRetriever(passages).rank(asked, 10)
    assert np.allclose(scores, expected, rtol=1e-5)
