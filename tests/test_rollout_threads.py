"""Trusted episodes wait for their tools side by side, and are the same episodes as one after the other."""

from __future__ import annotations

import itertools
import random
import threading
import time
from concurrent import futures

import pytest

from whale_envs import Harness, load_domain, load_harness
from whale_envs.domains.math_code import MathCode
from whale_envs.harness.helpers import ExecResult
from whale_train import rollout as module
from whale_train.policies.base import AtOnce
from whale_train.policies.scripted import ScriptedPolicy
from whale_train.progress import Silent
from whale_train.rollout import rollout


def _script(request):
    """Runs a program, then answers what it printed or something else."""
    rng = random.Random(request.seed)
    last = request.ask.messages[-1]["content"]
    if len(request.ask.messages) < 3:
        return f"<python>print({rng.randrange(100)} ** 2)</python>"
    return f"\\boxed{{{rng.choice([last.strip(), '7'])}}}"


def _play(domain, tasks=12):
    policy, harness = ScriptedPolicy(_script), load_harness("h0", "math")
    return rollout(policy, domain, harness, domain.splits.weight[:tasks], "weight", seed=3, repeats=2)


def test_the_episodes_are_those_of_one_thread(monkeypatch):
    domain = load_domain("math")
    together = _play(domain)
    monkeypatch.setattr(module, "THREADS", 1)
    assert _play(domain) == together
    assert {call.result.status for e in together for call in e.tool_calls} == {"ok"}


class Few(ScriptedPolicy):
    """Answers three requests at a time, as a sampler does whose replies are of uneven length."""

    def sampler(self):
        return FewAtATime(self._answers)


class FewAtATime(AtOnce):
    def collect(self):
        waiting, self._waiting = self._waiting[:3], self._waiting[3:]
        return [(ticket, reply) for (ticket, r) in waiting for reply in self._answer([r])]


@pytest.mark.parametrize("trusted", [True, False])
def test_who_goes_on_together_does_not_depend_on_how_long_tools_take(trusted):
    harness = Harness(load_harness("h0", "math").source, trusted=trusted)

    def played(seconds):
        def run_code(code, session):
            time.sleep(seconds())
            return ExecResult("1\n", "", "ok")

        policy = Few(lambda r: "<python>print(1)</python>" if len(r.ask.messages) < 3 else "\\boxed{1}")
        domain = MathCode(run_code=run_code)
        episodes = rollout(policy, domain, harness, domain.splits.weight[:12], "weight", 3, 2)
        return [request.seed for request in policy.requests], episodes

    rng = random.Random(0)
    assert played(lambda: rng.random() / 50) == played(lambda: 0)


def test_the_policy_goes_on_while_tools_are_at_work(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 60)
    went_on = threading.Event()

    def run_code(code, session):
        assert went_on.wait(30), "the policy waits for the tools of the first three"
        return ExecResult("1\n", "", "ok")

    def script(request):
        if len(policy.requests) == 6:
            went_on.set()
        return "<python>print(1)</python>" if len(request.ask.messages) < 3 else "\\boxed{1}"

    domain, policy = MathCode(run_code=run_code), Few(script)
    assert len(rollout(policy, domain, load_harness("h0", "math"), domain.splits.weight[:8], "weight", 3)) == 8


def test_tools_are_called_side_by_side():
    meet = threading.Barrier(8, timeout=60)

    def run_code(code, session):
        meet.wait()
        return ExecResult("1\n", "", "ok")

    assert len(_play(MathCode(run_code=run_code), tasks=4)) == 8


def test_an_episode_whose_tool_hangs_keeps_no_other_waiting_and_is_told_of(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    released, said, ended = threading.Event(), [], []

    def run_code(code, session):
        if "1 + 1" in code:
            assert released.wait(60)
        return ExecResult("1\n", "", "ok")

    class Watch(Silent):
        def say(self, line):
            said.append(line)

        def advance(self, rollouts):
            ended.append(rollouts)
            if sum(ended) == 7:  # all others have ended meanwhile
                released.set()

    asked = itertools.count()

    def script(request):
        if len(request.ask.messages) < 3:
            return "<python>print(1 + 1)</python>" if not next(asked) else "<python>print(2)</python>"
        return "\\boxed{1}"

    domain = MathCode(run_code=run_code)
    tasks = domain.splits.weight[:4]
    episodes = rollout(ScriptedPolicy(script), domain, load_harness("h0", "math"), tasks, "weight", 3, 2, Watch())
    assert len(episodes) == 8 and all(e.answer == "1" for e in episodes)
    assert any(line.startswith("1 of the episodes wait for their tools") for line in said)


def test_tools_that_end_while_they_are_told_of_stop_nothing(monkeypatch):
    def wait(steps, timeout=None, **how):
        found = futures.wait(steps, timeout, **how)
        futures.wait(steps)
        return found

    monkeypatch.setattr(module, "PATIENCE", 0.0)
    monkeypatch.setattr(module, "wait", wait)

    def run_code(code, session):
        time.sleep(0.05)
        return ExecResult("1\n", "", "ok")

    assert len(_play(MathCode(run_code=run_code))) == 24


@pytest.mark.parametrize("trusted", [True, False])
def test_episodes_that_end_before_their_first_ask_are_counted(trusted):
    early = "def run(task, tools):\n    if len(task.question) % 2:\n        return '1'\n"
    source = f"{early}    yield [{{'role': 'user', 'content': task.question}}]\n"
    counted = []

    class Watch(Silent):
        def advance(self, rollouts):
            counted.append(rollouts)

    domain, harness = load_domain("math"), Harness(source, trusted=trusted)
    tasks = domain.splits.weight[:10]
    episodes = rollout(ScriptedPolicy(lambda r: "1"), domain, harness, tasks, "weight", 3, 2, Watch())
    assert {len(e.calls) for e in episodes} == {0, 1}
    assert sum(counted) == 20


def test_a_bug_in_a_tool_is_not_swallowed():
    def run_code(code, session):
        raise ZeroDivisionError("a bug of ours")

    with pytest.raises(ZeroDivisionError):
        _play(MathCode(run_code=run_code))
