"""Recipes are the paper's runs, a command line in a file; a plan counts as the run does, and runs nothing."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mistakes import one_line
from safetensors.numpy import load_file

from whale_envs.data.recipes import SIZES
from whale_envs.harness.load import Harness, load_harness
from whale_train import cli
from whale_train.arguments import parse
from whale_train.config import RunConfig
from whale_train.plan import PlanConfig, costing, parameters
from whale_train.recipes import RECIPES, recipe_names

#: RSFT steps in an epoch, epochs in all, and epochs a phase of the main table, by domain (the paper).
EPOCH, TOTAL, PHASE = {"search-qa": 74, "math": 70, "chess": 64}, {"search-qa": 4, "math": 6, "chess": 4}, 0.6


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)


def planned(*argv: str) -> PlanConfig:
    config = parse(["plan", *argv])
    assert isinstance(config, PlanConfig)
    return config


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_is_the_papers_run(name: str) -> None:
    config = parse(["run", "--recipe", name])
    assert type(config) is RunConfig
    assert (config.prompts, config.group, config.minibatch, config.lr) == (256, 8, 64, 1e-6)
    assert (config.rounds, config.candidates, config.tasks, config.repeats) == (6, 3, 256, 8)
    assert config.proposer == "anthropic:claude-opus-4-7" and config.policy.startswith("vllm:Qwen/Qwen3.5-")
    assert isinstance(config.start(), Harness)  # it can be read, and has a `run`
    cost = costing(planned(name))
    (arm,) = cost.arms
    assert round(SIZES[config.domain]["weight"] / 256) == EPOCH[config.domain]
    assert {p.amount for p, _ in arm.phases} == {round(PHASE * EPOCH[config.domain]), 6}
    epochs = arm.units("weights") / EPOCH[config.domain]
    assert abs(epochs - TOTAL[config.domain]) < PHASE / 2
    if config.domain == "math":  # the one whose figures the paper gives: 46,080 rollouts of search, at 256 tasks each
        assert arm.units("harness") * 3 * 256 == 46_080
        assert cost.training_rollouts == 860_160


@pytest.mark.parametrize("name", recipe_names())
def test_the_search_alone_that_a_recipe_names_plays_as_many_rounds_as_its_cycles(name: str) -> None:
    named = re.search(r"--schedule harness-only --budget-rollouts (\d+)` \((\d+) rounds", " ".join(
        line.lstrip("# ") for line in (RECIPES / f"{name}.toml").read_text().splitlines()
    ))  # fmt: skip
    assert named is not None
    (arm,) = costing(planned(name, "--schedule", "harness-only", "--budget-rollouts", named[1])).arms
    (whole,) = costing(planned(name)).arms
    assert arm.units("harness") == int(named[2]) == whole.units("harness")


def test_there_is_a_recipe_for_each_domain() -> None:
    assert {parse(["run", "--recipe", name]).domain for name in recipe_names()} == set(SIZES)


def test_what_is_typed_goes_before_a_recipe_and_the_order_does_not_matter() -> None:
    name = "math-qwen3.5-2b"
    for argv in (
        ["--recipe", name, "--lr", "1e-7", "--seed", "4"],
        ["--seed", "4", "--lr=1e-7", f"--recipe={name}"],
    ):
        config = parse(["run", *argv])
        assert isinstance(config, RunConfig)
        assert (config.lr, config.seed, config.prompts) == (1e-7, 4, 256)
    typed = parse(["run", "--recipe", name, "--dataset", "None", "--harness", "h0"])
    assert (typed.dataset, typed.harness) == (None, "h0")


def test_epochs_that_are_typed_take_the_place_of_a_recipes_steps(tmp_path: Path) -> None:
    Path("r.toml").write_text("[run]\nsteps = 5\n")
    for argv, steps in ((["--epochs", "1"], None), (["--epochs=1"], None), ([], 5), (["--steps", "7"], 7)):
        config = parse(["run", "--recipe", "r.toml", *argv])
        assert isinstance(config, RunConfig) and config.steps == steps


def test_a_plan_of_ten_thousand_cycles_takes_no_minute() -> None:
    (arm,) = costing(PlanConfig(schedule="bandit", steps=1, rounds=1, baselines=False, cycles=10_000)).arms
    assert len(arm.phases) > 13_000


def test_a_recipe_of_ones_own_may_bring_its_harness_and_turn_flags_both_ways(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "h.py").write_text(load_harness("h0", "chess").source)
    text = '[run]\ndomain = "chess"\nharness = "h.py"\nracing = true\nfinal_search = false\nbaselines = true\n'
    (tmp_path / "mine" / "r.toml").write_text(text)
    config = parse(["run", "--recipe", "mine/r.toml"])
    assert isinstance(config, RunConfig)
    assert (config.racing, config.final_search, config.baselines) == (True, False, True)
    assert config.start().source == load_harness("h0", "chess").source
    assert not config.start().trusted  # it runs jailed


def test_a_recipe_is_no_part_of_what_decides_the_result() -> None:
    by_name = parse(["run", "--recipe", "chess-qwen3.5-4b"])
    by_path = parse(["run", "--recipe", str(RECIPES / "chess-qwen3.5-4b.toml")])
    assert isinstance(by_name, RunConfig) and isinstance(by_path, RunConfig)
    assert by_name.identity() == by_path.identity()
    assert "recipe" not in RunConfig().identity()


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("run --recipe math", "expected one of FILE.toml, chess-qwen3.5-4b, math-qwen3.5-2b, searchqa-qwen3.5-2b"),
        ("plan serchqa-qwen3.5-2b", "did you mean 'searchqa-qwen3.5-2b'?"),
        ("plan nowhere.toml", "cannot read recipe nowhere.toml"),
        ("plan broken.toml", "broken.toml is no TOML"),
        ("plan table.toml", "table.toml holds 'training'"),
        ("plan option.toml", "unknown option of option.toml 'epoch'"),
        ("plan value.toml", "recipe value.toml: --epochs 0: expected more than 0"),
        ("plan list.toml", "policy of list.toml is ['tiny']"),
        ("plan deep.toml", "deep.toml is no TOML"),
        ("plan digits.toml", "digits.toml is no TOML"),
        ("plan zero.toml", "cannot read harness a"),
        ("plan false.toml", "rescore of false.toml is False: expected a text or a number"),
        ("plan flag.toml", "racing of flag.toml is 1: expected true or false"),
        ("plan twice.toml", "twice.toml gives micro-batch twice"),
        ("plan tables.toml", "unknown option of [plan] in tables.toml 'cycles'"),
        ("run --recipe tables.toml", "unknown option of [plan] in tables.toml 'cycles'"),
        ("plan --harness nowhere.py", "cannot read harness nowhere.py"),
        ("plan --cycles 1 --no-final-search", "--no-final-search --cycles 1 leaves no search"),
        ("run --recipe math-qwen3.5-2b", "`whale data prepare math --source hub --out data/math` makes it"),
        ("plan --policy hf:Qwen/Qwen3.5-2B", "give --parameters"),
        ("plan --proposer anthropic:claude-1", "unknown model of the anthropic proposer"),
        ("plan --device cpu --policy hf:a/b --parameters 9", "give --sampling-speed"),
        ("plan --accepted 1.5", "--accepted 1.5"),
        ("plan --budget-rollouts 3", "--budget-rollouts 3"),
        ("plan --dataset nowhere.jsonl --domain math", "nowhere.jsonl"),
    ],
)
def test_mistakes(capsys: pytest.CaptureFixture[str], argv: str, expected: str) -> None:
    Path("broken.toml").write_text("[run")
    Path("table.toml").write_text("[training]\nlr = 1\n")
    Path("option.toml").write_text("[run]\nepoch = 1\n")
    Path("value.toml").write_text("[run]\nepochs = 0\n")
    Path("list.toml").write_text("[run]\npolicy = ['tiny']\n")
    Path("deep.toml").write_text(f"[run]\nlr = {'[' * 5000}\n")
    Path("digits.toml").write_text(f"[run]\ncycles = {'9' * 5000}\n")
    Path("zero.toml").write_text('[run]\nharness = "a\\u0000.py"\n')
    Path("false.toml").write_text("[run]\nrescore = false\n")
    Path("flag.toml").write_text("[run]\nracing = 1\n")
    Path("twice.toml").write_text("[run]\nmicro_batch = 4\nmicro-batch = 2\n")
    Path("tables.toml").write_text("[plan]\ncycles = 50\n")
    assert expected in one_line(capsys, *argv.split())


@pytest.mark.parametrize("name", recipe_names())
def test_a_plan_says_all_it_has_to_and_touches_no_network(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any) -> None:
        raise AssertionError("a plan touches the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert cli.main(["plan", name]) == 0
    said = capsys.readouterr().out
    for part in ("rollouts", "sampled", "trained", "optimiser steps", "proposer dollars", "checkpoints", "archive"):
        assert part in said
    for origin in ("the paper's sizes", "2026-09", "a rule of thumb", "H200", f"given (recipe {name})"):
        assert origin in said
    assert max(map(len, said.splitlines())) <= 120
    assert list(Path().iterdir()) == []


def test_a_plan_loads_no_torch() -> None:
    code = (
        "import sys; from whale_train import cli; cli.main(['plan', 'math-qwen3.5-2b']); print('torch' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert told.splitlines()[-1] == "False"


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    schedule=st.sampled_from(["fixed", "adaptive", "bandit", "stagewise", "weights-only", "harness-only"]),
    cycles=st.integers(1, 4),
    epochs=st.floats(0.05, 1.0),
    rounds=st.integers(1, 8),
    limit=st.none() | st.integers(3000, 40_000),
    rescore=st.integers(0, 2),
)
def test_a_plan_adds_up(
    schedule: Any, cycles: int, epochs: float, rounds: int, limit: int | None, rescore: int
) -> None:
    config = PlanConfig(
        schedule=schedule, cycles=cycles, epochs=epochs, rounds=rounds, budget_rollouts=limit, rescore=rescore
    )
    cost = costing(config)
    for arm in cost.arms:
        played = sum(spent for _, spent in arm.phases)
        # rollouts of an open end are its budget, less what fits no phase any more
        slack = sum((arm.plan.costs.step, arm.plan.costs.baseline, arm.plan.costs.round, arm.plan.costs.rescore))
        assert played == arm.rollouts or (arm.plan.open_ended and 0 <= arm.rollouts - played <= slack)
        if limit is not None:
            assert played <= limit
        assert 1 <= arm.tests <= len(arm.phases)
    steps = sum(arm.units("weights") for arm in cost.arms)
    assert cost.training_rollouts == steps * 512
    assert cost.optimiser_steps == steps * 32  # all accepted, in minibatches of 16
    assert cost.proposer_dollars == (0.0, 0.0)  # mutation
    assert cost.sampling_hours > 0 and cost.checkpoint_bytes >= 0


def test_parameters_are_counted_in_the_files() -> None:
    found = parameters(PlanConfig(domain="chess"))
    folder = Path(found.origin.removeprefix("counted in "))
    assert found.value == sum(array.size for array in load_file(folder / "model.safetensors").values()) > 0
