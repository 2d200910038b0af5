"""Demonstrations of the math model: what they show, what they leave out, and how good their expert is."""

import itertools
import random
import time
from collections import Counter

import pytest

from whale_envs import Harness, HarnessEnv, load_harness
from whale_envs.data.math_files import content_key
from whale_envs.data.math_mini import mini_problems, mini_splits, owner
from whale_envs.task import SPLITS
from whale_envs.tools.python_tool import run_python
from whale_train.tiny import demos_math
from whale_train.tiny.demos_math import Expert, broken, demos, evaluate, fresh, play, variant, world, wrong


def accuracy(harness, noisy, repeats):
    """The expert's score on the test split; `noisy` is the share of episodes with mistakes."""
    problems = {t.id: p for t, p in zip(mini_splits().test, mini_problems()["test"], strict=True)}
    env = HarnessEnv(world(problems), harness=harness)
    draw = random.Random(0)
    scores = []
    for task, problem in list(problems.items()) * repeats:
        play(env, task, Expert(problem, draw, draw.random() < noisy))
        scores.append(env.episode.score)
    return sum(scores) / len(scores)


def test_a_seed_and_a_part_give_the_same_conversations_and_others_give_others():
    def first(*args):
        return list(itertools.islice(demos(*args), 50))

    assert first(1, True) == first(1, True)
    assert first(1, True) != first(2, True)
    assert first(1, True) != first(1, False)


def test_no_shipped_task_and_no_held_out_family_is_demonstrated():
    shipped = {content_key(t.shown["question"]) for s in SPLITS for t in mini_splits()[s]}
    problems = fresh(random.Random(3), 1000)
    assert not shipped & {content_key(p.question) for p in problems.values()}
    assert all(owner(p.clauses) == "shared" for p in problems.values())
    asked = {content_key(c[0]["content"].split("\n")[0]) for c in itertools.islice(demos(4, True), 300)}
    assert not shipped & asked


def test_conversations_end_with_the_model_and_alternate():
    for conversation in itertools.islice(demos(5, True), 500):
        roles = [m["role"] for m in conversation]
        start = roles.index("user")
        assert roles[:start] in ([], ["system"])
        assert roles[-1] == "assistant"
        assert all((role == "assistant") == (i % 2 == 1) for i, role in enumerate(roles[start:]))
        assert sum(len(m["content"]) for m in conversation) < 1500


def test_the_clean_part_mends_its_few_mistakes_and_the_noisy_part_leaves_many(monkeypatch):
    def solved(noise):
        episodes = []
        monkeypatch.setattr(demos_math, "play", lambda env, *rest: (play(env, *rest), episodes.append(env.episode))[0])
        list(itertools.islice(demos(6, noise), 400))
        return sum(e.score for e in episodes) / len(episodes)

    assert solved(False) > 0.8
    assert solved(True) < solved(False) - 0.15


def test_h0_binds_the_ideal_policy_and_the_strong_harness_does_not(monkeypatch):
    monkeypatch.setattr(demos_math, "CLEAN_ERROR", 0.0)
    monkeypatch.setattr(demos_math, "CLEAN_NO_FORMAT", 0.0)
    short = sum(len(t.gold) <= 4 for t in mini_splits().test) / len(mini_splits().test)
    assert accuracy("h0", 0.0, 1) == pytest.approx(short)
    assert 0.5 < short < 0.7
    assert accuracy("strong", 0.0, 1) == 1


def test_the_noisy_expert_leaves_room_for_weights_and_for_harnesses():
    h0, strong = accuracy("h0", demos_math.NOISY, 2), accuracy("strong", demos_math.NOISY, 2)
    assert 0.28 < h0 < 0.42
    assert h0 + 0.2 < strong < 0.8
    longer = Harness(variant(load_harness("h0", "math").source, {"CHARACTERS": 8}), "longer", trusted=True)
    retries = Harness(variant(load_harness("h0", "math").source, {"TURNS": 4}), "retries", trusted=True)
    assert accuracy(longer, demos_math.NOISY, 2) > h0 + 0.1
    assert accuracy(retries, demos_math.NOISY, 2) > h0


def test_programs_evaluate_as_the_sandboxed_tool_runs_them():
    draw = random.Random(7)
    problems = list(fresh(draw, 100).values())
    codes = [f(p) for p in problems for f in (lambda p: p.program, lambda p: wrong(p, draw), lambda p: broken(p, draw))]
    by_last_line = {}
    for code in codes:  # one program for each error message, a few that print
        last = evaluate(code).stderr.strip().rpartition("\n")[2]
        by_last_line.setdefault(last, []).append(code)
    assert len(by_last_line) >= 6
    for last, same in by_last_line.items():
        for code in same[: 2 if last else 20]:
            real, here = run_python(code, timeout=10), evaluate(code)
            assert (real.stdout, real.status) == (here.stdout, here.status)
            assert real.stderr.strip().rpartition("\n")[2] == last


def test_broken_programs_show_nothing_and_wrong_ones_run():
    draw = random.Random(8)
    for problem in fresh(draw, 300).values():
        assert evaluate(broken(problem, draw)).stdout == ""
        assert evaluate(wrong(problem, draw)).status == "ok"


def test_a_constant_that_the_harness_lacks_is_our_mistake():
    with pytest.raises(ValueError, match="no constant NOPE"):
        variant(load_harness("h0", "math").source, {"NOPE": 1})


def test_demonstrations_are_made_faster_than_they_are_learned():
    stream = demos(9, True)
    next(stream)
    start = time.process_time()
    lengths = Counter(len(c) for c in itertools.islice(stream, 1000))
    assert time.process_time() - start < 2
    assert len(lengths) > 3
