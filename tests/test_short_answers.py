"""Verifiers of short answers: they agree with recorded labels, and no gold or answer makes them lenient by accident."""

import json
import re
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from real_data import REAL, needs_real_data

import whale_envs
from whale_envs import UserError
from whale_envs.harness.helpers import tag
from whale_envs.verifiers import exact_match, exact_match_reward, f1, sub_em
from whale_envs.verifiers.exact_match import normalise

VERIFIERS = [exact_match, f1, sub_em]
EMPTY = ["*", "---", "the", "", "a an the", "  "]


def squad(text: str) -> str:
    """`normalize_answer` of the official evaluation script of SQuAD 1.1."""
    kept = "".join(c for c in text.lower() if c not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", kept).split())


@given(st.text() | st.text("aAnN tThHeE.,_-'\t\n\x0b\x1c\x00\x7f\u2019\xa0é٣", max_size=20))
def test_text_is_normalised_as_squad_does_it(text):
    assert normalise(text) == squad(text)


@pytest.mark.parametrize("verify", VERIFIERS)
@given(answer=st.none() | st.text(max_size=20) | st.sampled_from(EMPTY))
def test_a_gold_that_normalises_to_nothing_matches_no_answer(verify, answer):
    assert verify(answer, EMPTY).score == 0


@pytest.mark.parametrize("verify", VERIFIERS)
@given(gold=st.text(max_size=30), others=st.lists(st.text(max_size=10), max_size=3))
def test_a_gold_matches_itself_beside_any_others(verify, gold, others):
    wanted = 1.0 if normalise(gold) else 0.0
    assert verify(f"The {gold}!", [*others, gold]).score >= wanted
    assert verify(gold, [gold]).score == wanted


@given(st.text("ab cdé.", max_size=20), st.lists(st.text("ab cdé.", max_size=20), max_size=4))
def test_the_three_are_ordered_and_between_0_and_1(answer, golds):
    scores = [verify(answer, golds).score for verify in VERIFIERS]
    assert all(0 <= s <= 1 for s in scores)
    exact, overlap, contained = scores
    assert exact <= overlap and exact <= contained
    assert (overlap == 1) >= (exact == 1)
    if contained:
        assert overlap > 0


def test_f1_is_the_harmonic_mean_over_tokens_with_their_counts_and_the_best_gold_counts():
    assert f1("Zamboanga City", ["Quezon City"]).score == 0.5
    assert f1("to be or not to be", ["to be"]).score == 0.5
    assert f1("b", ["x y z", "b c", "b c d"]).score == pytest.approx(2 / 3)


def test_sub_em_looks_for_whole_words():
    assert sub_em("He was born in Kent, England", ["Kent"]).score == 1
    assert sub_em("Kentucky", ["Kent"]).score == 0
    assert sub_em("Kent", ["He was born in Kent"]).score == 0
    assert sub_em("the U.S. Navy", ["us navy"]).score == 1


@needs_real_data
def test_exact_match_and_f1_agree_with_every_recorded_label():
    rows = [json.loads(line) for line in Path(REAL, "verifier/em_cases_dev.jsonl").read_text().splitlines()]
    assert len(rows) == 500
    for row in rows:
        assert exact_match(row["pred"], row["golden_answers"]).score == row["em"], row
        assert f1(row["pred"], row["golden_answers"]).score == pytest.approx(row["f1"], abs=5e-5), row


@needs_real_data
def test_real_transcripts_give_the_recorded_answer_and_score_as_recorded():
    """ "acc" is FlashRAG's sub-EM."""
    rows = [json.loads(line) for line in Path(REAL, "verifier/searchr1_stress_dev.jsonl").read_text().splitlines()]
    assert len(rows) == 174
    for row in rows:
        answer, golds, recorded = tag(row["transcript"], "answer"), row["golden_answers"], row["metric"]
        assert (answer or "") == row["pred"]
        scores = [verify(answer, golds).score for verify in VERIFIERS]
        assert scores == pytest.approx([recorded["em"], recorded["f1"], recorded["acc"]]), row["id"]
    texts, golds = [r["transcript"] for r in rows], [r["golden_answers"] for r in rows]
    wanted = [r["metric"]["em"] for r in rows]
    assert exact_match_reward(texts, texts, golden_answers=golds) == wanted


# as the verifier of an environment


def play(verifier, reply):
    env = whale_envs.HarnessEnv("search-qa", verifier=verifier)
    env.reset(seed=5)
    gold = env.tasks.by_id(env.episode.task_id).gold[0]
    while not env.done:
        env.step(f"<answer>{reply.format(gold=gold)}</answer>")
    env.close()
    return env.episode.score, len(normalise(gold).split())


def test_an_environment_scores_by_the_verifier_that_it_is_given_and_exactly_by_default():
    names = (None, "exact-match", "f1", "sub-em")
    assert [play(name, "{gold}")[0] for name in names] == [1, 1, 1, 1]
    (default, _), (exact, _), (overlap, words), (contained, _) = (play(n, "it is {gold} I think") for n in names)
    assert (default, exact, contained) == (0, 0, 1)
    assert overlap == pytest.approx(2 * words / (2 * words + 4))


def test_a_loaded_domain_has_its_verifier_already():
    domain = whale_envs.load_domain("search-qa", None, "f1")
    assert domain.verifier == "f1"
    with pytest.raises(UserError, match="where it is loaded"):
        whale_envs.HarnessEnv(domain, verifier="f1")


@pytest.mark.parametrize(
    "domain, verifier, said",
    [
        ("search-qa", "em", "expected one of"),
        ("search-qa", "exact_match", "did you mean 'exact-match'"),
        ("math", "f1", "math-verify"),
        ("math", "mathverify", "did you mean 'math-verify'"),
        ("chess", "f1", "expected one of line"),
    ],
)
def test_an_unknown_verifier_is_one_line_that_names_those_that_there_are(domain, verifier, said):
    with pytest.raises(UserError, match=said) as error:
        whale_envs.load_domain(domain, None, verifier)
    assert "\n" not in str(error.value)
