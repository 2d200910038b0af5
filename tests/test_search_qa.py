"""SearchQA: the mini world's promises, exact match, and real files."""

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from real_data import REAL, needs_real_data

from whale_envs import UserError, load_domain
from whale_envs.data.folder import load_splits
from whale_envs.data.reader import DUPLICATE
from whale_envs.data.search_files import NO_ANSWER, NO_QUESTION
from whale_envs.data.search_world import SIZES, SearchWorld
from whale_envs.domains.search_qa import SearchQA
from whale_envs.verifiers.exact_match import exact_match, normalise


def test_a_world_is_the_same_for_the_same_seed_and_another_for_another():
    assert SearchWorld(3).splits().test.hash == SearchWorld(3).splits().test.hash
    assert SearchWorld(3).splits().test.hash != SearchWorld(4).splits().test.hash


def test_the_mini_splits_are_disjoint_by_content_and_hold_both_kinds_of_question():
    splits = load_domain("search-qa").splits
    contents = [normalise(t.shown["question"]) for s in SIZES for t in splits[s]]
    assert len(set(contents)) == len(contents) == sum(SIZES.values())
    for split in SIZES:
        kinds = Counter(task.source for task in splits[split])
        assert 0.2 < kinds["2-hop"] / len(splits[split]) < 0.4


@given(st.integers(0, 10**6))
@settings(max_examples=10, deadline=None)
def test_every_answer_can_be_read_off_the_passages_that_the_question_leads_to(seed):
    world = SearchWorld(seed)
    for _ in range(50):
        question = world.question()
        at = question.entity
        for relation in question.path:
            sentences = world.entities[at].passage().text.splitlines()
            (found,) = [s for s in sentences[1:] if s.split()[1] == relation]
            at = found.partition(" is ")[2].rstrip(".")
        assert at == question.answer


def test_a_title_finds_its_own_passage_first_but_for_a_few_that_others_mention_often():
    retriever = SearchQA(SearchWorld(5)).retriever
    missed = [p.title for p in retriever.passages if retriever.search(p.title, k=1)[0].id != p.id]
    assert len(missed) < 0.02 * len(retriever.passages)


@given(st.text(max_size=20))
def test_a_gold_that_normalises_to_nothing_matches_no_answer(answer):
    assert exact_match(answer, ["*", "---", "the", ""]).score == 0


@given(st.text(min_size=1, max_size=30))
def test_an_answer_matches_itself_whatever_its_case_articles_and_punctuation(answer):
    if normalise(answer):
        assert exact_match(f"The {answer}!", [answer]).score == 1


def test_rows_that_cannot_be_scored_are_dropped_and_counted(tmp_path):
    rows = [{"question": f"q{i}?", "answers": ["x"]} for i in range(4)]
    rows += [
        {"question": "Q1", "answer": "X!"},
        {"question": "q9", "answers": ["*"]},
        {"question": "?", "answers": ["x"]},
        {"question": None, "answers": ["x"]},
    ]
    path = tmp_path / "q.jsonl"
    path.write_text("\n".join(json.dumps(r) for r in rows))
    splits = load_splits("search-qa", path)
    assert sum(len(splits[s]) for s in SIZES) == 4
    assert splits.dropped == {DUPLICATE: 1, NO_ANSWER: 1, NO_QUESTION: 2}


@pytest.mark.parametrize(
    "content, said",
    [
        (b'{"question": "x"', ":1 is no JSON"),
        (b"[1]", ":1 is a JSON list"),
        (b'{"text": "x"}', ":1 has no question: expected a column question"),
        (b'{"question": "x", "answers": ["y"]}', "keeps 1 rows"),
        (b"\xff\xfe", "cannot read"),
    ],
)
def test_a_malformed_question_file_is_one_line_that_names_the_place(tmp_path, content, said):
    path = tmp_path / "q.jsonl"
    path.write_bytes(content)
    with pytest.raises(UserError, match=said) as error:
        load_splits("search-qa", path)
    assert "\n" not in str(error.value)


def test_a_missing_file_and_a_dataset_without_a_corpus_say_what_was_expected(tmp_path):
    with pytest.raises(UserError, match=r"no file .*expected questions"):
        load_domain("search-qa", f"{tmp_path}/none.jsonl,corpus={tmp_path}/none.jsonl")
    with pytest.raises(UserError, match=r"names no corpus: expected questions\.jsonl,corpus=CORPUS, "):
        load_domain("search-qa", "questions.jsonl")


@needs_real_data
def test_on_real_questions_every_gold_answer_scores_1_and_every_dropped_row_is_counted():
    folder = Path(REAL, "qa")
    domain = load_domain("search-qa", f"{folder / 'qa_dev_eval.jsonl'},corpus={folder / 'corpus_wiki.jsonl.gz'}")
    tasks = [t for s in SIZES for t in domain.splits[s]]
    assert len(tasks) + sum(domain.splits.dropped.values()) == 1594
    for task in tasks:
        for gold in task.gold:
            assert domain.world(task).verdict(gold).score == 1
    found = domain.retriever.search(tasks[0].shown["question"], 5)
    assert len(found) == 5


@needs_real_data
def test_exact_match_agrees_with_the_recorded_labels():
    lines = Path(REAL, "verifier", "em_cases_dev.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert rows
    for row in rows:
        golds = row.get("golds") or row.get("gold") or row.get("golden_answers") or row.get("answers")
        golds = golds if isinstance(golds, list) else [golds]
        assert exact_match(row.get("prediction", row.get("pred")), golds).score == row["em"], row
