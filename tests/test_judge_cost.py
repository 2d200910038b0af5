"""What a judge cost is in the ledger, whatever the work; and a verifier is chosen on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import msgspec
import pytest
import tiny_agent
from judge_server import KEY, JudgeServer

from whale_envs import Task, UserError, Verdict, World, load_domain, load_harness, read_episodes
from whale_train.cli import main
from whale_train.config import TrainConfig
from whale_train.evaluate import evaluate, load_evaluation
from whale_train.ledger import Ledger
from whale_train.meta_harness.archive import Archive
from whale_train.meta_harness.search import SearchSettings, search
from whale_train.policies.base import Request
from whale_train.policies.scripted import ScriptedPolicy
from whale_train.progress import Silent
from whale_train.rsft.phase import weight_phase

H0 = load_harness("h0", "search-qa")
DOLLARS = 220 / 1e6  # one question to the judge of `judge_server` at @1/5


def guesser(request: Request) -> str:
    """Answers otherwise each time."""
    return f"<answer>guess {request.seed}</answer>"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    with JudgeServer(lambda asked: "yes" if int(asked["answer to grade"].split()[1]) % 2 else "no") as judge:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("OPENAI_BASE_URL", f"{judge.url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setenv("WHALE_CACHE", str(tmp_path / "cache"))
        yield judge


def test_an_evaluation_knows_what_it_cost_and_its_episodes_add_up_to_it(server: JudgeServer, tmp_path: Path) -> None:
    domain, policy = load_domain("search-qa", None, "judge:openai:m@1/5"), ScriptedPolicy(guesser, "guesser")
    found, episodes = evaluate(policy, domain, H0, "test", repeats=2, limit=4, folder=tmp_path / "e")
    assert found.dollars == pytest.approx(DOLLARS * len(server.requests)) and len(server.requests) == 8
    assert found.judge == found.dollars
    assert 0 < found.score.mean < 1
    assert sum(e.verdict.dollars for e in read_episodes(tmp_path / "e" / "episodes.jsonl")) == found.dollars
    kept = load_evaluation(tmp_path / "e")
    assert kept is not None and kept.dollars == found.dollars
    again, same = evaluate(policy, domain, H0, "test", repeats=2, limit=4, folder=tmp_path / "f")
    assert again.dollars == 0 and same == episodes and len(server.requests) == 8  # kept verdicts cost nothing again


def test_another_verifier_is_another_evaluation(server: JudgeServer, tmp_path: Path) -> None:
    policy = ScriptedPolicy(guesser, "guesser")
    evaluate(policy, load_domain("search-qa"), H0, "test", repeats=1, limit=2, folder=tmp_path / "e")
    with pytest.raises(UserError, match="verifier exact-match there, f1 here"):
        evaluate(policy, load_domain("search-qa", None, "f1"), H0, "test", repeats=1, limit=2, folder=tmp_path / "e")


def test_a_search_pays_for_its_judge(server: JudgeServer, tmp_path: Path) -> None:
    domain, ledger = load_domain("search-qa", None, "judge:openai:m@1/5"), Ledger(tmp_path / "ledger.jsonl")
    archive, config = Archive(tmp_path / "archive", "search-qa"), SearchSettings(rounds=0, tasks=6)
    search(ScriptedPolicy(guesser, "g"), domain, H0, config, archive, None, ledger, Silent(), 3, "search")  # type: ignore[arg-type]
    spent = Ledger(ledger.path).by_kind()["search"]
    assert spent.rollouts == len(server.requests) == 6
    assert spent.dollars == pytest.approx(6 * DOLLARS) == spent.judge


class _Dear(tiny_agent.Echo):
    """A domain whose every verdict costs a cent."""

    def world(self, task: Task) -> World:
        world = super().world(task)
        free = world.verdict

        def verdict(answer: Any) -> Verdict:
            return msgspec.structs.replace(free(answer), dollars=0.01)

        world.verdict = verdict  # type: ignore[method-assign]
        return world


def test_a_weight_phase_pays_for_its_judge(tmp_path: Path) -> None:
    options, ledger = TrainConfig(prompts=8, group=2, minibatch=4, micro_batch=4, seed=3), tmp_path / "l.jsonl"
    policy, harness = tiny_agent.policy(), tiny_agent.ONE_TURN
    weight_phase(policy, _Dear(20), harness, options, 1, tmp_path / "w", Ledger(ledger), Silent(), "weights")
    spent = Ledger(ledger).by_kind()
    assert spent["sampling"].dollars == pytest.approx(16 * 0.01) == spent["sampling"].judge
    assert spent["training"].dollars == 0


def test_an_unknown_verifier_is_one_line_before_anything_is_played(capsys: pytest.CaptureFixture[str]) -> None:
    for domain, verifier in (("chess", "f1"), ("math", "maths-verify"), ("search-qa", "judge:openai")):
        assert main(["eval", "--domain", domain, "--verifier", verifier]) == 2
        said = capsys.readouterr().err
        assert said.startswith("whale: ") and said.count("\n") == 1 and verifier in said


@pytest.mark.parametrize("vector", [False, True])
def test_a_verifier_survives_in_the_spec_of_an_env(vector: bool) -> None:
    if vector:
        envs = gymnasium.make_vec("whale/SearchQA", num_envs=2, verifier="f1", split="test")
        assert envs.envs[0].domain.verifier == "f1"  # type: ignore[attr-defined]
        return
    env = gymnasium.make("whale/SearchQA", verifier="f1")
    assert env.spec is not None
    again = gymnasium.make(gymnasium.envs.registration.EnvSpec.from_json(env.spec.to_json()))
    assert again.unwrapped.domain.verifier == "f1"  # type: ignore[attr-defined]
