"""`whale matrix`: every checkpoint under every accepted harness, and what of the gain stems from which."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import random
import shutil
import statistics
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inline_pool import inline_pool, unjailed
from mistakes import one_line

from whale_envs import Harness, load_domain, load_harness
from whale_envs.episode import write_atomic
from whale_train import cli, matrix
from whale_train.config import EvalConfig, RunConfig
from whale_train.evaluate import evaluate, load_evaluation
from whale_train.ledger import Ledger, Spent
from whale_train.matrix import parts_of_gain
from whale_train.meta_harness.archive import Archive
from whale_train.meta_harness.records import Round
from whale_train.metrics import mean_at_k
from whale_train.policies import load
from whale_train.policies.base import Request
from whale_train.policies.scripted import ScriptedPolicy
from whale_train.run import test_name as folder_of
from whale_train.run_folder import RunFolder
from whale_train.whale import Snapshot

DOMAIN, H0 = load_domain("search-qa"), load_harness("h0", "search-qa")
GOLDS = {t.shown["question"]: t.gold[0] for t in DOMAIN.splits.test}
#: H1 is accepted in a first round, H2 replaces it in the second, H3 comes with the next weights.
H1, H2, H3 = (
    Harness(H0.source.replace("Question:", f"{word} question:"), word) for word in ("Curious", "Careful", "Clever")
)
#: The chance of a right answer, by the folder of the weights and the word of the harness.
SKILL = {
    ("start", "Question"): 0.1, ("start", "Curious"): 0.2, ("start", "Careful"): 0.3, ("start", "Clever"): 0.3,
    ("01", "Question"): 0.3, ("01", "Curious"): 0.4, ("01", "Careful"): 0.6, ("01", "Clever"): 0.6,
    ("03", "Question"): 0.4, ("03", "Curious"): 0.5, ("03", "Careful"): 0.7, ("03", "Clever"): 0.95,
}  # fmt: skip
asked: list[Request] = []


def policy(spec: str, domain: str = "search-qa") -> ScriptedPolicy:
    """The policy of a checkpoint."""
    weights = "start" if spec == "tiny" else Path(spec.removeprefix("hf:")).parent.name

    def reply(request: Request) -> str:
        asked.append(request)
        shown = "\n".join(m["content"] for m in request.ask.messages)
        question = next(q for q in GOLDS if q in shown)
        word = next((w for w in ("Curious", "Careful", "Clever") if w in shown), "Question")
        luck = random.Random(request.seed).random()
        return f"<answer>{GOLDS[question] if luck < SKILL[weights, word] else 'nobody'}</answer>"

    return ScriptedPolicy(reply, weights)


def phases(arm: str) -> list[Snapshot]:
    """What each arm went through: (weights, harness) after each phase."""
    w0, w1, w2 = (policy(spec).weights_hash for spec in ("tiny", "hf:weights/01/step", "hf:weights/03/step"))
    first, second = "weights/01/step", "weights/03/step"
    if arm == "weights-only":
        return [
            Snapshot("start", 0, "start", 0, H0.hash, w0),
            Snapshot("cycle 1 weights", 1, "weights", 900, H0.hash, w1, first),
        ]
    return [
        Snapshot("start", 0, "start", 0, H0.hash, w0),
        Snapshot("cycle 1 weights", 1, "weights", 300, H0.hash, w1, first),
        Snapshot("cycle 1 harness", 1, "harness", 600, H2.hash, w1, first),
        Snapshot("cycle 2 weights", 2, "weights", 900, H2.hash, w2, second),
        Snapshot("cycle 2 harness", 2, "harness", 1200, H3.hash, w2, second),
    ]


def rounds() -> list[Round]:
    """What the searches of the first arm accepted, round by round."""
    accepted = [("cycle 1 harness", [H1, H2]), ("cycle 2 harness", [H2, H3, H3])]
    return [Round(phase, n, [], h.hash, 0.5) for phase, found in accepted for n, h in enumerate(found, 1)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has ended, tested where its cycles end."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    config = RunConfig(out=folder, limit=12, repeats=2)
    with RunFolder(config, "full") as made:
        made.starts_from(policy("tiny").weights_hash)
        for arm in ("whale", "weights-only"):
            home, done = folder / "arms" / arm, phases(arm)
            archive = Archive(home / "archive", "search-qa")
            for harness in (H0, H1, H2, H3):
                archive.add(harness.source, harness.name, (), (), harness.name)
            if arm == "whale":
                write_atomic(
                    archive.folder / "rounds.jsonl", b"".join(msgspec.json.encode(r) + b"\n" for r in rounds())
                )
            for snapshot in done:
                if snapshot.model:
                    (home / snapshot.model).mkdir(parents=True, exist_ok=True)
            write_atomic(home / "state.json", msgspec.json.encode(done))
            ledger = Ledger(home / "ledger.jsonl")
            ends = [s for s in done if s.kind != "weights" or arm != "whale"]
            for s in ends:
                harness = {h.hash: h for h in (H0, H1, H2, H3)}[s.harness]
                spec = f"hf:{home / s.model}" if s.model else "tiny"
                evaluate(
                    policy(spec), DOMAIN, Harness(harness.source, harness.name, trusted=True), "test", 2, 12, 0,
                    folder=folder / "test" / folder_of(s),
                )  # fmt: skip
                ledger.add(Spent(f"test {folder_of(s)}", "test", 24))
        made.write_result(rollouts=1200)
    return folder


def patch(monkeypatch: pytest.MonkeyPatch) -> None:
    """No model and no processes."""
    monkeypatch.setattr(load, "load_policy", policy)
    monkeypatch.setattr(matrix, "pool", inline_pool)
    monkeypatch.setattr(Archive, "harness", unjailed)


@pytest.fixture
def run(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it to work on."""
    monkeypatch.chdir(tmp_path)
    patch(monkeypatch)
    asked.clear()
    return Path(shutil.copytree(finished, "run"))


@pytest.fixture(scope="module")
def made(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The run with its matrix, and what was printed."""
    folder = tmp_path_factory.mktemp("made") / "run"
    shutil.copytree(finished, folder)
    with pytest.MonkeyPatch.context() as monkeypatch, contextlib.redirect_stdout(io.StringIO()) as shown:
        patch(monkeypatch)
        assert cli.main(["matrix", str(folder)]) == 0
    return folder, shown.getvalue()


def kept(run: Path, name: str = "matrix.json") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / name).read_bytes())
    return found


def test_every_checkpoint_is_tested_under_every_accepted_harness_and_the_first(made: tuple[Path, str]) -> None:
    run, found = made[0], kept(made[0])
    assert [w["phase"] for w in found["weights"]] == ["start", "cycle 1 weights", "cycle 2 weights"]
    assert [h["hash"] for h in found["harnesses"]] == [H0.hash, H1.hash, H2.hash, H3.hash]
    made_by = ["start", "cycle 1 harness, round 1", "cycle 1 harness, round 2", "cycle 2 harness, round 2"]
    assert [h["phase"] for h in found["harnesses"]] == made_by
    for weights, row in zip(found["weights"], found["cells"], strict=True):
        for harness, cell in zip(found["harnesses"], row, strict=True):
            test = load_evaluation(run / "test" / cell["test"])
            assert test is not None
            assert (test.key.weights, test.key.harness) == (weights["hash"], harness["hash"])
            assert cell["mean@2"] == test.score.mean == mean_at_k(test.scores).mean
            assert cell["ci95"] == [test.score.low, test.score.high]
            episodes = (run / "test" / cell["test"] / "episodes.jsonl").read_bytes().splitlines()
            assert test.rollouts == len(episodes) == 24
    visited = [[cell["visited"] for cell in row] for row in found["cells"]]
    assert visited == [[True, False, False, False], [True, True, True, False], [False, False, True, True]]
    assert {"command", "versions", "hashes", "seed", "tier", "run"} <= set(found)
    assert (run / "matrix.png").read_bytes().startswith(b"\x89PNG")


def test_cells_that_are_on_disk_are_not_played_again_and_those_that_are_played_are_in_the_ledger_once(
    run: Path,
) -> None:
    before = {p: p.read_bytes() for p in run.glob("test/*/*")}
    assert len(before) == 2 * 4
    assert cli.main(["matrix", "run"]) == 0
    assert {p: p.read_bytes() for p in before} == before
    assert len(asked) == (12 - 4) * 24
    first = kept(run) | {"seconds": None}
    asked.clear()
    assert cli.main(["matrix", "run"]) == 0
    assert asked == [] and kept(run) | {"seconds": None} == first
    ledger = Ledger(run / "arms" / "whale" / "ledger.jsonl")
    assert ledger.rollouts("test") == 12 * 24 and ledger.rollouts() == 0, "apart from the budget"


def test_killed_anywhere_it_goes_on_to_the_same_matrix(
    run: Path, made: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, calls = kept(made[0]), iter(range(10_000))

    def mortal(spec: str, domain: str) -> ScriptedPolicy:
        if next(calls) % 2:
            raise KeyboardInterrupt
        return policy(spec)

    monkeypatch.setattr(load, "load_policy", mortal)
    ends = []
    while not ends or ends[-1] == 130:
        ends.append(cli.main(["matrix", "run"]))
    assert ends == [130] * (len(ends) - 1) + [0] and len(ends) == 8
    same = ("weights", "harnesses", "cells", "gain")
    assert [kept(run)[name] for name in same] == [whole[name] for name in same]


def test_the_parts_of_the_gain_are_those_of_the_four_corners(made: tuple[Path, str]) -> None:
    found, shown = kept(made[0]), made[1]
    corner = {(w, h): found["cells"][w][h]["mean@2"] for w in (0, 2) for h in (0, 3)}
    mean = {name: part["mean"] for name, part in found["gain"].items()}
    assert mean["weights"] == pytest.approx(corner[2, 0] - corner[0, 0])
    assert mean["harness"] == pytest.approx(corner[0, 3] - corner[0, 0])
    assert mean["interaction"] == pytest.approx(corner[2, 3] - corner[2, 0] - corner[0, 3] + corner[0, 0])
    assert mean["total"] == pytest.approx(mean["weights"] + mean["harness"] + mean["interaction"])
    for part in found["gain"].values():
        low, high = part["ci95"]
        assert f"{100 * part['mean']:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]" in shown
    for row in found["cells"]:
        for cell in row:
            assert f"{100 * cell['mean@2']:.1f} [{100 * cell['ci95'][0]:.1f}, {100 * cell['ci95'][1]:.1f}]" in shown


SCORES = st.lists(st.sampled_from([0.0, 0.25, 1.0]), min_size=3, max_size=3)


@settings(max_examples=50)
@given(st.lists(st.tuples(SCORES, SCORES, SCORES, SCORES), min_size=2, max_size=6))
def test_parts_add_up_and_each_is_paired_over_the_tasks(tasks: list[tuple[list[float], ...]]) -> None:
    start, harness, weights, both = ({f"t{i}": task[at] for i, task in enumerate(tasks)} for at in range(4))
    parts = parts_of_gain(start, harness, weights, both)
    assert parts["total"].mean == pytest.approx(sum(parts[name].mean for name in ("weights", "harness", "interaction")))
    means = [[statistics.fmean(scores) for scores in task] for task in tasks]
    each = [b - w - h + s for s, h, w, b in means]
    assert parts["interaction"].mean == pytest.approx(statistics.fmean(each))
    # a constant for a task, under all four, is in no part: what pairing is for
    moved = parts_of_gain(*({t: [s + 5 for s in v] for t, v in x.items()} for x in (start, harness, weights, both)))
    for name, part in parts.items():
        assert part.low <= part.mean <= part.high
        assert (moved[name].mean, moved[name].low) == pytest.approx((part.mean, part.low), abs=1e-9)


def test_an_interaction_may_be_as_large_as_two() -> None:
    none, all_of_them = ({f"t{i}": [value] for i in range(5)} for value in (0.0, 1.0))
    assert parts_of_gain(none, all_of_them, all_of_them, none)["interaction"].mean == -2


def test_other_sizes_go_to_folders_of_their_own(run: Path) -> None:
    before = {p: p.read_bytes() for p in run.glob("test/*/*")}
    assert cli.main("matrix run --repeats 1 --limit 6".split()) == 0
    found = kept(run)
    assert (found["repeats"], found["tasks"]) == (1, 6) and "mean@1" in found["cells"][0][0]
    assert all(cell["test"].endswith("-1x6") for row in found["cells"] for cell in row)
    assert {p: p.read_bytes() for p in before} == before and len(asked) == 12 * 6


def test_another_arm_has_files_of_its_own_and_one_harness_leaves_nothing_to_tell_apart(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main("matrix run --arm weights-only".split()) == 0
    found = kept(run, "matrix-weights-only.json")
    assert (len(found["weights"]), len(found["harnesses"]), found["gain"]) == (2, 1, {})
    assert "ended with the harness that it began with" in capsys.readouterr().out
    assert (run / "matrix-weights-only.png").exists() and not (run / "matrix.json").exists()
    assert asked == [], "both cells were tested by the run"


def test_a_harness_that_did_not_ship_is_the_copy_that_the_run_made(run: Path) -> None:
    info = json.loads((run / "run.json").read_bytes())
    info["config"]["harness"] = "mine.py"  # and no such file
    (run / "run.json").write_text(json.dumps(info))
    (run / "start").mkdir()
    (run / "start" / "mine.py").write_text(H0.source)
    assert cli.main(["matrix", "run"]) == 0
    assert len(asked) == 8 * 24


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("result.json", "run has not ended, and until then its test set stays sealed: run `"),
        ("arms/whale/weights/03/step", "the weights in run/arms/whale/weights/03/step are gone"),
        ("arms/whale/state.json", "has no arm whale any more"),
        ("arms/whale/archive", "run/arms/whale/archive has no rounds any more"),
        ("run.json", "run is no run folder"),
    ],
)
def test_a_run_that_is_not_whole_is_refused_before_anything_is_played(
    run: Path, capsys: pytest.CaptureFixture[str], change: str, expected: str
) -> None:
    path = run / change
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert expected in one_line(capsys, "matrix", "run")
    assert asked == [] and not (run / "matrix.json").exists()


def test_weights_or_data_that_have_changed_since_are_named(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "load_policy", lambda *_: ScriptedPolicy([], "others"))
    assert "has not the weights that the run had" in one_line(capsys, "matrix", "run")
    info = json.loads((run / "run.json").read_bytes())
    info["hashes"]["data"] = "a-b-c"
    (run / "run.json").write_text(json.dumps(info))
    assert "its data has changed since (a-b-c there" in one_line(capsys, "matrix", "run")
    info["config"]["speed"] = 3
    (run / "run.json").write_text(json.dumps(info))
    assert "made by another version of whale" in one_line(capsys, "matrix", "run")


def test_a_folder_of_another_kind_or_in_use_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RunFolder(EvalConfig(out=Path("eval")), "full"):
        assert "eval holds a whale eval" in one_line(capsys, "matrix", "eval")
    with (run / ".lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert "another process works in run" in one_line(capsys, "matrix", "run")
    assert "did you mean 'weights-only'?" in one_line(capsys, "matrix", "run", "--arm", "weights-onyl")
    assert "--repeats 0: expected 1 to" in one_line(capsys, "matrix", "run", "--repeats", "0")
    assert asked == []


@pytest.mark.slow
def test_a_real_run_has_a_matrix_on_all_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = "--cycles 1 --steps 1 --prompts 16 --group 4 --rounds 1 --candidates 2 --tasks 16 --repeats 1 --limit 12"
    assert cli.main(f"run --domain math --schedule fixed --out run {sizes}".split()) == 0
    assert cli.main(["matrix", "run"]) == 0
    found = kept(Path("run"))
    assert len(found["weights"]) == 2 and found["cells"][0][0]["visited"] and found["cells"][-1][-1]["visited"]
    assert cli.main(["report", "run"]) == 0


@pytest.mark.parametrize(
    ("spec", "baselines", "processors", "workers"),
    [("tiny", True, 16, 12), ("tiny", True, 2, 2), ("hf:m", True, 16, 3), ("hf:m", False, 16, 2), ("hf:m", True, 1, 1)],
)
def test_no_more_models_are_loaded_at_once_than_the_run_had(
    spec: str, baselines: bool, processors: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrix, "processors", lambda: processors)
    assert matrix._workers(RunConfig(policy=spec, baselines=baselines), 12) == workers
