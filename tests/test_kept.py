"""Data are read once for as long as their files stay as they are, and never longer."""

from __future__ import annotations

import json
from pathlib import Path

import gymnasium
import pytest
from judge_server import KEY, JudgeServer

from whale_envs import UserError, load_domain
from whale_envs.domains.search_qa import SearchQA
from whale_envs.task import SPLITS, Splits
from whale_envs.tools.retrieval import BACKENDS, open_retriever


def problems(path: Path, count: int) -> str:
    path.write_text("".join(json.dumps({"problem": f"number {i}", "answer": i}) + "\n" for i in range(count)))
    return str(path)


def size(splits: Splits) -> int:
    return sum(len(splits[split]) for split in SPLITS)


def test_an_edited_file_gives_its_new_tasks(tmp_path: Path) -> None:
    dataset = problems(tmp_path / "p.jsonl", 8)
    first = gymnasium.make("whale/Math", dataset=dataset).unwrapped.domain  # type: ignore[attr-defined]
    assert load_domain("math", dataset).splits is first.splits
    problems(tmp_path / "p.jsonl", 12)
    again = gymnasium.make("whale/Math", dataset=dataset).unwrapped.domain  # type: ignore[attr-defined]
    assert (size(first.splits), size(again.splits)) == (8, 12)
    (tmp_path / "p.jsonl").unlink()
    with pytest.raises(UserError, match="no file"):
        load_domain("math", dataset)


def test_so_does_a_file_that_takes_anothers_place_and_a_new_one_in_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    problems(folder / "train.jsonl", 8)
    before = load_domain("math", str(folder)).splits
    problems(tmp_path / "other", 8)
    text = (tmp_path / "other").read_text()
    (tmp_path / "other").write_text(text.replace("number", "letter"))  # as many bytes
    (tmp_path / "other").replace(folder / "train.jsonl")
    moved = load_domain("math", str(folder)).splits
    assert size(moved) == size(before) and moved.weight.hash != before.weight.hash
    problems(folder / "test.jsonl", 20)  # eight of them are no problem of "letter"
    assert len(load_domain("math", str(folder)).splits.test) == 20


def test_a_relative_path_is_another_file_in_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, count in (("a", 8), ("b", 12)):
        (tmp_path / name).mkdir()
        problems(tmp_path / name / "p.jsonl", count)
        monkeypatch.chdir(tmp_path / name)
        assert size(load_domain("math", "p.jsonl").splits) == count


def test_verifiers_that_use_other_rows_have_other_tasks_of_one_file(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps({"problem": f"number {i}", "answer": f"{i}/7"}) + "\n" for i in range(15)))
    assert size(load_domain("math", str(path), "math-verify").splits) == 15
    with pytest.raises(UserError, match="15 x the answer is not an integer"):
        load_domain("math", str(path), "integer")


def corpus(path: Path, words: str) -> str:
    path.write_text("".join(json.dumps({"id": i, "contents": word}) + "\n" for i, word in enumerate(words.split())))
    return str(path)


@pytest.mark.parametrize("dataset", ["\0", "x" * 5000, '{"problem": "x"}' * 500])
def test_what_can_be_no_path_is_one_line(dataset: str) -> None:
    with pytest.raises(UserError, match="is no path") as caught:
        load_domain("math", dataset)
    assert len(str(caught.value)) < 200
    with pytest.raises(UserError, match="is no path"):
        open_retriever(dataset)


def test_a_tilde_is_the_home_in_every_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    problems(tmp_path / "p.jsonl", 8)
    assert size(load_domain("math", "~/p.jsonl").splits) == 8
    problems(tmp_path / "p.jsonl", 12)
    assert size(load_domain("math", "~/p.jsonl").splits) == 12
    corpus(tmp_path / "c.jsonl", "apple")
    for backend in BACKENDS:
        assert open_retriever("~/c.jsonl", backend).search("apple")
    with pytest.raises(UserError, match=r"no file ~nobody-here/p\.jsonl"):
        load_domain("math", "~nobody-here/p.jsonl")
    with pytest.raises(UserError, match=r"cannot read ~nobody-here/c\.jsonl"):
        open_retriever("~nobody-here/c.jsonl")


def test_an_edited_corpus_is_searched_as_it_is_now_and_one_retriever_serves_all(tmp_path: Path) -> None:
    where, questions = corpus(tmp_path / "c.jsonl", "apple pear"), tmp_path / "q.jsonl"
    questions.write_text("".join(json.dumps({"question": f"who {i}?", "answer": "x"}) + "\n" for i in range(8)))
    one, other = (load_domain("search-qa", f"{questions},corpus={where}") for _ in range(2))
    assert isinstance(one, SearchQA) and isinstance(other, SearchQA) and one.retriever is other.retriever
    assert not one.retriever.search("plum")
    corpus(tmp_path / "c.jsonl", "apple pear plum")
    assert open_retriever(where).search("plum") and not one.retriever.search("plum")


def test_a_judge_is_the_one_of_the_environment_as_it_is_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("WHALE_CACHE", str(tmp_path))
    for said in ("yes", "no"):
        with JudgeServer(lambda asked, said=said: said) as server:  # type: ignore[misc]
            monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
            domain = load_domain("search-qa", None, "judge:openai:m@1/5")
            verdict = domain.world(domain.splits.test[0]).verdict("something else")
            assert (verdict.score, len(server.requests)) == (float(said == "yes"), 1)
