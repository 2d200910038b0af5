"""`whale diagnose`: two arms of one budget, measured where neither has looked, judged by a rule that is stated."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from inline_pool import inline_pool, unjailed
from mistakes import one_line
from policy_models import tiny_model, tiny_tokenizer

from whale_envs import Harness, Splits, load_domain
from whale_envs.episode import read_episodes
from whale_train import cli, options, run, whale
from whale_train.bounds import diagnosis
from whale_train.config import DiagnoseConfig
from whale_train.evaluate import load_evaluation
from whale_train.ledger import Ledger, Spent
from whale_train.meta_harness.archive import Archive
from whale_train.meta_harness.evaluate import split_tasks
from whale_train.meta_harness.records import Phase, Round, Score, ScoreKey
from whale_train.policies import load
from whale_train.policies.base import Request
from whale_train.policies.scripted import ScriptedPolicy
from whale_train.rsft import phase as rsft
from whale_train.whale import plan_of

DOMAIN = load_domain("search-qa")
GOLDS = {t.shown["question"]: t.gold[0] for split in ("weight", "harness") for t in DOMAIN.splits[split]}
ARGV = "diagnose --out run --limit 12 --repeats 2".split()


class Sealed:
    """A test split that must not be touched."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"the test split was read: {name}")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class World:
    """What training and search come to: the chance of a right answer by (trained, searched), and every request."""

    def __init__(self) -> None:
        self.skill = {(False, False): 0.2, (True, False): 0.3, (False, True): 0.9}
        self.asked = 0
        self.dies_at: int | None = None

    def policy(self, spec: str, domain: str) -> ScriptedPolicy:
        trained = spec != "tiny"

        def reply(request: Request) -> str:
            self.asked += 1
            if self.asked == self.dies_at:
                raise KeyboardInterrupt
            shown = "\n".join(m["content"] for m in request.ask.messages)
            question = next(q for q in GOLDS if q in shown)
            luck = random.Random(f"{request.seed}").random()
            right = luck < self.skill[trained, "careful" in shown]
            return f"<answer>{GOLDS[question] if right else 'nobody'}</answer>"

        return ScriptedPolicy(reply, f"trained {spec}" if trained else "start")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """No training and no search but what they come to; no processes; no test split."""
    made = World()

    def weight_phase(
        policy: Any, domain: Any, harness: Any, options: Any, steps: int, out: Path, ledger: Ledger, progress: Any,
        key: str, start: Path | None, over: Callable[[Sequence[float]], str], skip: int,
    ) -> tuple[Path, list[float]]:  # fmt: skip
        (out / "step").mkdir(parents=True, exist_ok=True)
        policy.name = f"trained hf:{out / 'step'}"
        ledger.add(Spent(key, "sampling", rollouts=options.prompts * options.group * steps))
        return out / "step", [0.2] * steps

    def search(
        policy: Any, domain: Any, harness: Harness, settings: Any, archive: Archive, proposer: Any, ledger: Ledger,
        progress: Any, seed: int, phase: str, over: Any,
    ) -> Harness:  # fmt: skip
        start = archive.add(harness.source, "Where the search starts from.", (), (), "start")
        better = archive.add(harness.source.replace("Question:", "careful Question:"), "Care.", (), (), "r1")
        tasks, _ = split_tasks(domain.splits.harness, settings.shadow, settings.tasks)
        key = ScoreKey(policy.weights_hash, tasks.hash, seed)
        archive.begin(Phase(phase, key), start.hash)
        archive.record(start.hash, key, Score(0.2, 0.04, len(tasks), 1.0, "start"), [])
        archive.finish_round(Round(phase, 1, [], better.hash, 0.9))
        ledger.add(Spent("search", "search", rollouts=settings.tasks * (1 + 3 * settings.rounds)))
        return archive.harness(better.hash)

    domain = copy.copy(DOMAIN)
    domain.splits = Splits(DOMAIN.splits.weight, DOMAIN.splits.harness, Sealed())  # type: ignore[arg-type]
    monkeypatch.setattr(options, "load_domain", lambda *_: domain)
    monkeypatch.setattr(rsft, "weight_phase", weight_phase)
    monkeypatch.setattr(whale, "search", search)
    monkeypatch.setattr(load, "load_policy", made.policy)
    monkeypatch.setattr(run, "pool", inline_pool)
    monkeypatch.setattr(Archive, "harness", unjailed)
    return made


def result() -> dict[str, Any]:
    return json.loads(Path("run/result.json").read_bytes()) | {"seconds": None}


@pytest.mark.parametrize(
    ("trained", "searched", "bound", "said"),
    [
        (0.25, 0.9, "harness", "bound by its harness"),
        (0.9, 0.25, "model", "bound by its model"),
        (0.9, 0.9, "both", "either helps"),
        (0.2, 0.2, "undecided", "not to be told at this budget"),
    ],
)
def test_verdict_follows_from_what_is_measured(
    world: World, capsys: pytest.CaptureFixture[str], trained: float, searched: float, bound: str, said: str
) -> None:
    world.skill[True, False], world.skill[False, True] = trained, searched
    assert cli.main(ARGV) == 0
    shown, found = capsys.readouterr().out, result()
    assert found["bound_by"] == bound and said in shown
    assert shown.splitlines()[-1] == "run"
    assert found["tasks"] == 12 and set(found["start"]) == {"mean@2", "ci95", "sets"}
    for arm in ("weights-only", "harness-only"):
        gain = found["arms"][arm]["gain"]
        assert f"{100 * gain['mean']:+.1f} [{100 * gain['ci95'][0]:+.1f}, {100 * gain['ci95'][1]:+.1f}]" in shown
        assert found["arms"][arm]["mean@2"] - found["start"]["mean@2"] == pytest.approx(gain["mean"])
    assert {"command", "versions", "hashes", "seed", "tier"} <= set(found)


def test_every_number_comes_from_episodes_on_shadow_tasks_and_no_other_are_played(world: World) -> None:
    assert cli.main(ARGV) == 0
    found = result()
    shadow = split_tasks(DOMAIN.splits.harness, 0.25, 1)[1]
    folders = sorted(Path("run/shadow").iterdir())
    assert len(folders) == 3 and not Path("run/test").exists()
    scores = []
    for folder in folders:
        episodes = list(read_episodes(folder / "episodes.jsonl"))
        assert list(dict.fromkeys(e.task_id for e in episodes)) == [t.id for t in shadow[:12]]
        kept = load_evaluation(folder)
        assert kept is not None
        scores.append((kept.score.mean, kept.scores))
    start, trained, searched = (s for _, s in sorted(scores, key=lambda s: s[0]))
    again = diagnosis(start, trained, searched)
    assert found["search_less_training"]["mean"] == again.difference.mean
    assert found["arms"]["harness-only"]["gain"]["ci95"] == [again.search.low, again.search.high]
    rates = found["behaviours"]["answered"]
    assert rates == {
        "start": 1.0,
        **{arm: {"rate": 1.0, "change": {"mean": 0.0, "ci95": [0.0, 0.0]}} for arm in found["arms"]},
    }
    assert "careful" in Path("run/arms/harness-only/harness.py").read_text()


def test_the_test_split_is_neither_read_nor_part_of_what_the_folder_is(world: World) -> None:
    assert cli.main(ARGV) == 0  # Sealed() would have raised
    assert result()["hashes"]["data"] == f"{DOMAIN.splits.weight.hash}-{DOMAIN.splits.harness.hash}"


def test_both_arms_get_the_same_budget_and_what_measures_them_is_not_in_it(world: World) -> None:
    assert cli.main(ARGV) == 0
    assert [end["rollouts"] for end in result()["arms"].values()] == [2048, 2048]
    for arm in ("weights-only", "harness-only"):
        ledger = Ledger(Path("run/arms", arm, "ledger.jsonl"))
        assert ledger.rollouts() == 2048 and ledger.rollouts("test") > 0
    assert sum(Ledger(p).rollouts("test") for p in Path("run/arms").glob("*/ledger.jsonl")) == 3 * 12 * 2


@pytest.mark.parametrize(("budget", "steps", "rounds"), [(512, 1, 1), (1100, 2, 2), (2048, 4, 5), (6144, 12, 15)])
def test_a_budget_is_a_cap_and_each_arm_comes_as_near_as_whole_steps_and_rounds_do(
    budget: int, steps: int, rounds: int
) -> None:
    given = DiagnoseConfig(budget_rollouts=budget)
    amounts = {arm: [phase.amount for phase, _ in plan_of(given, arm, DOMAIN).played()] for arm in given.arms}
    assert amounts == {"weights-only": [steps], "harness-only": [rounds]}
    assert all(plan_of(given, arm, DOMAIN).rollouts() <= budget for arm in given.arms)


def test_taken_up_after_a_kill_it_ends_as_one_left_alone_and_plays_nothing_twice(world: World) -> None:
    assert cli.main(ARGV) == 0
    whole, asked = result(), world.asked
    assert cli.main(ARGV) == 0
    assert result() == whole and world.asked == asked, "all is on disk"
    for moment in (1, 20, 60):
        argv = [f"killed-{moment}" if word == "run" else word for word in ARGV]
        world.dies_at = world.asked + moment
        assert cli.main(argv) == 130
        assert cli.main(argv) == 0
        again = json.loads(Path(f"killed-{moment}", "result.json").read_bytes())
        same = ("bound_by", "why", "start", "arms", "search_less_training", "behaviours", "hashes")
        assert {name: again[name] for name in same} == {name: whole[name] for name in same}


def test_training_and_search_that_change_nothing_are_measured_once(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(whale, "search", lambda policy, domain, harness, *_: harness)
    monkeypatch.setattr(rsft, "weight_phase", lambda *args: (_unchanged(args[5]), [0.2]))
    monkeypatch.setattr(load, "load_policy", lambda spec, domain: world.policy("tiny", domain))
    assert cli.main(ARGV) == 0
    assert len(list(Path("run/shadow").iterdir())) == 1
    found = result()
    assert found["bound_by"] == "undecided" and found["needed"] is None
    assert "neither training nor search gained anything" in capsys.readouterr().out


def _unchanged(out: Path) -> Path:
    (out / "step").mkdir(parents=True)
    return out / "step"


def test_what_is_open_is_said_with_what_it_would_take(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.skill[True, False], world.skill[False, True] = 0.9, 0.85
    assert cli.main(ARGV) == 0
    found, shown = result(), capsys.readouterr().out
    assert found["bound_by"] == "both"
    assert f"takes about {found['needed']['tasks']:,} tasks to tell (12 here)" in shown


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("--budget-rollouts 511", "--budget-rollouts 511: a step of training, a search of one round, or both take 512"),
        ("--budget-rollouts 0", "--budget-rollouts 0: expected more than 0"),
        ("--policy openai:x@http://localhost:1/v1", "cannot be trained from here"),
        ("--epochs 1", "--epochs"),
        ("--domain ches", "did you mean 'chess'?"),
    ],
)
def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str], argv: str, expected: str) -> None:
    assert expected in one_line(capsys, "diagnose", *argv.split())
    assert list(Path().iterdir()) == []


def test_help_states_the_rule(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["diagnose", "--help"])
    assert end.value.code == 0
    said = re.sub(r"[\s│]+", " ", capsys.readouterr().out)
    for part in ("bound by its harness where the search gains really", "either helps", "95 % interval", "--repeats",
                 "--budget-rollouts", "--proposer"):  # fmt: skip
        assert part in said
    assert "--rounds" not in said and "--steps" not in said, "the budget says how many"


@pytest.mark.slow
def test_a_small_diagnosis_of_a_real_model_comes_to_a_verdict(tmp_path: Path) -> None:
    tiny_model().save_pretrained(tmp_path / "model")
    tiny_tokenizer().save_pretrained(tmp_path / "model")
    sizes = "--budget-rollouts 24 --prompts 6 --group 2 --tasks 6 --candidates 1 --repeats 2 --limit 8"
    assert cli.main(f"diagnose --policy hf:{tmp_path}/model --out run {sizes}".split()) == 0
    found = result()
    assert found["bound_by"] == "undecided" and found["arms"]["weights-only"]["rollouts"] == 24
    assert found["arms"]["harness-only"]["rollouts"] <= 24
    assert found["behaviours"]["cap hit"]["start"] is not None
