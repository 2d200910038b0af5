"""The command line: a user's mistake is one clear line and exit code 2, and a folder is one run's alone."""

from __future__ import annotations

import fcntl
import functools
import importlib.machinery
import json
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
from mistakes import one_line
from policy_models import tiny_model, tiny_tokenizer

from whale_envs import sandbox
from whale_train import cli
from whale_train.policies import load
from whale_train.policies.scripted import ScriptedPolicy
from whale_train.run_folder import command_line

HARNESS = "def run(task, tools):\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random model on disk, as --policy takes it."""
    folder = tmp_path_factory.mktemp("model")
    tiny_model().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return f"hf:{folder}"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> ScriptedPolicy:
    """Stands in for every policy; it answers "x", and counts what it is asked."""
    policy = ScriptedPolicy(lambda request: "<answer>x</answer>")
    monkeypatch.setattr(load, "load_policy", lambda *args: policy)
    return policy


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("", "Expected one of"),
        ("evl", "(whale --help lists"),
        ("run --epoch 3", "did you mean --epochs? (whale run --help lists"),
        ("index search c.jsonl two words", "Unrecognized options: words (whale index --help lists"),
        ("run --epochs x", "--epochs"),
        ("run --epochs 0", "--epochs 0: expected more than 0"),
        ("run --epochs nan", "--epochs nan"),
        ("run --rounds 1.5", "--rounds"),
        ("eval --seed -1", "--seed -1"),
        ("eval --domain ches", "did you mean 'chess'?"),
        ("eval --split tset", "did you mean 'test'?"),
        ("eval --policy gpt", "unknown policy 'gpt'"),
        ("eval --policy hf:", "expected tiny or hf:DIR"),
        ("eval --policy hf:no/such/folder", "no folder no/such/folder"),
        ("eval --harness stong", "did you mean 'strong'?"),
        ("eval --harness nowhere.py", "cannot read harness nowhere.py"),
        ("eval --dataset nowhere.jsonl,corpus=c.jsonl", "nowhere.jsonl"),
        ("eval --domain math --dataset nowhere.jsonl", "nowhere.jsonl"),
        ("eval --domain chess --dataset nowhere.csv", "nowhere.csv"),
        ("run --proposer mutatoin", "did you mean 'mutation'?"),
        ("run --proposer anthropic", "ANTHROPIC_API_KEY is not set"),
        ("search --proposer anthropic", "--proposer mutation"),
        ("report", "run"),
        ("report nowhere", "nowhere is no run folder"),
    ],
)
def test_mistake_in_the_arguments(capsys: pytest.CaptureFixture[str], argv: str, expected: str) -> None:
    assert expected in one_line(capsys, *argv.split())
    assert list(Path().iterdir()) == []  # nothing was begun


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (HARNESS + "    yield [\n", "does not parse at line 2"),
        (HARNESS + "    return 'x'\n", "never yields"),
        ("x = 1\n", "no function `run(task, tools)`"),
        ("def run(task):\n    yield []\n", "takes (task, tools)"),
    ],
)
def test_harness_that_cannot_be_one(capsys: pytest.CaptureFixture[str], source: str, expected: str) -> None:
    Path("mine.py").write_text(source)
    assert expected in one_line(capsys, "eval", "--harness", "mine.py")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (HARNESS + "    yield task.nothing\n", "AttributeError"),
        (HARNESS + "    reply = yield [{'role': 'user', 'content': 'q'}]\n    1 / 0\n", "ZeroDivisionError"),
        (HARNESS + "    yield 7\n", "yields a list of messages or an Ask"),
    ],
)
def test_harness_that_fails_every_time(
    capsys: pytest.CaptureFixture[str], scripted: ScriptedPolicy, source: str, expected: str
) -> None:
    Path("mine.py").write_text(source)
    line = one_line(capsys, "eval", "--harness", "mine.py")
    assert "harness mine failed in all of 2 trial episodes" in line
    assert expected in line


def test_harness_that_never_comes_to_its_yield(capsys: pytest.CaptureFixture[str], scripted: ScriptedPolicy) -> None:
    Path("mine.py").write_text(HARNESS + "    if False:\n        yield []\n    return 'x'\n")
    assert "without asking the model" in one_line(capsys, "eval", "--harness", "mine.py")


def test_mended_harness_takes_the_folder_that_its_trial_left(
    capsys: pytest.CaptureFixture[str], scripted: ScriptedPolicy
) -> None:
    argv = ["eval", "--harness", "mine.py", "--limit", "2", "--repeats", "1", "--out", "run"]
    Path("mine.py").write_text(HARNESS + "    yield 7\n")
    assert "mend it and run again" in one_line(capsys, *argv)
    Path("mine.py").write_text(
        HARNESS + "    reply = yield [{'role': 'user', 'content': 'q'}]\n    return reply.text\n"
    )
    assert cli.main(argv) == 0
    hashes = [json.loads(Path("run", name).read_bytes())["hashes"] for name in ("run.json", "result.json")]
    assert hashes[0] == hashes[1]


@pytest.mark.slow
def test_harness_that_loops_for_ever(capsys: pytest.CaptureFixture[str], scripted: ScriptedPolicy) -> None:
    Path("mine.py").write_text(HARNESS + "    while True:\n        pass\n    yield []\n")
    assert "harness mine failed in all of 2 trial episodes" in one_line(capsys, "eval", "--harness", "mine.py")


def test_policy_that_returns_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "load_policy", lambda *args: ScriptedPolicy(lambda request: " \n", "mute"))
    assert "policy mute returned nothing" in one_line(capsys, "eval", "--limit", "2")


def test_malformed_row_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    Path("c.jsonl").write_text('{"id": "1", "title": "t", "text": "x"}\n')
    Path("q.jsonl").write_text('{"id": "1", "question": "q", "answers": ["x"]}\nnonsense\n')
    line = one_line(capsys, "eval", "--dataset", "q.jsonl,corpus=c.jsonl")
    assert "q.jsonl" in line and "2" in line


def test_full_disk_leaves_a_folder_that_goes_on(
    capsys: pytest.CaptureFixture[str], scripted: ScriptedPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ["eval", "--limit", "3", "--repeats", "2", "--out", "run"]
    writes, sync = iter(range(100)), os.fsync

    def full_later(fd: int) -> None:
        if next(writes) >= 2:  # run.json is written, what follows is not
            raise OSError(28, "No space left on device")
        sync(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full_later)
        assert "No space left on device; free some space" in one_line(capsys, *argv)
    assert cli.main(argv) == 0
    assert json.loads(Path("run/result.json").read_bytes())["rollouts"] == 6


def test_same_command_says_the_same_and_plays_nothing_again(
    capsys: pytest.CaptureFixture[str], scripted: ScriptedPolicy
) -> None:
    argv = ["eval", "--limit", "3", "--repeats", "2", "--out", "run"]
    assert cli.main(argv) == 0
    first, asked = capsys.readouterr().out, len(scripted.requests)
    result = json.loads(Path("run/result.json").read_bytes())
    assert cli.main(argv) == 0
    assert capsys.readouterr().out == first
    assert len(scripted.requests) == asked
    assert json.loads(Path("run/result.json").read_bytes()) == result
    assert result["mean@2"] == 0 and result["tasks"] == 3 and result["failures"] == {}
    assert result["tier"] == json.loads(Path("run/run.json").read_bytes())["tier"] == sandbox.tier()


def test_another_configuration_in_the_same_folder_is_refused(
    capsys: pytest.CaptureFixture[str], scripted: ScriptedPolicy
) -> None:
    assert cli.main(["eval", "--limit", "2", "--repeats", "1", "--out", "run"]) == 0
    before = {p: p.read_bytes() for p in Path("run").rglob("*") if p.is_file()}
    capsys.readouterr()
    line = one_line(capsys, "eval", "--limit", "2", "--repeats", "1", "--out", "run", "--seed", "5")
    assert "run holds another run (seed 0 there, 5 here)" in line
    line = one_line(capsys, "eval", "--limit", "2", "--repeats", "1", "--out", "run", "--harness", "strong")
    assert "harness 'h0' there, 'strong' here" in line
    assert {p: p.read_bytes() for p in Path("run").rglob("*") if p.is_file()} == before


def test_folder_with_other_files_is_left_alone(capsys: pytest.CaptureFixture[str], scripted: ScriptedPolicy) -> None:
    Path("thesis.tex").write_text("x")
    assert "is no run folder (it holds thesis.tex)" in one_line(capsys, "eval", "--out", ".")
    Path("file").write_text("x")
    assert "cannot write to file" in one_line(capsys, "eval", "--out", "file")


def test_two_processes_do_not_share_a_folder(capsys: pytest.CaptureFixture[str], scripted: ScriptedPolicy) -> None:
    Path("run").mkdir()
    with Path("run/.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert "another process works in run" in one_line(capsys, "eval", "--out", "run")


def test_bug_of_ours_is_a_traceback(scripted: ScriptedPolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(*args: object) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr(scripted, "_answers", bug)
    with pytest.raises(RuntimeError, match="ours"):
        cli.main(["eval", "--limit", "1"])


def test_ctrl_c_says_how_to_go_on(
    capsys: pytest.CaptureFixture[str], scripted: ScriptedPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(scripted, "_answers", stop)
        assert cli.main(["eval", "--limit", "2", "--repeats", "1", "--out", "run"]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "whale: stopped; the same command goes on from here"
    assert cli.main(["eval", "--limit", "2", "--repeats", "1", "--out", "run"]) == 0


def test_help_and_mistakes_come_before_torch() -> None:
    code = "import sys, whale_train.cli as c; assert c.main(['run', '--domain', 'x']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "False\n"
    assert done.stderr.startswith("whale: unknown domain 'x'")
    assert done.stderr.count("\n") == 1


def test_help_explains_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("run", "train", "search", "eval", "report", "doctor"):
        with pytest.raises(SystemExit) as end:
            cli.main([command, "--help"])
        assert end.value.code == 0
        said = capsys.readouterr().out
        assert "--out" in said and "(default:" in said
        if command not in ("report", "doctor"):
            assert all(
                option in said for option in ("--domain", "--dataset", "--harness", "--policy", "--seed", "--unsafe")
            )


def test_eval_of_a_model_on_disk(capsys: pytest.CaptureFixture[str], model: str) -> None:
    argv = ["eval", "--policy", model, "--limit", "3", "--repeats", "2", "--out", "run"]
    assert cli.main(argv) == 0
    said = capsys.readouterr()
    assert said.out.startswith("mean@2 ") and said.out.splitlines()[-1] == "run"
    result = json.loads(Path("run/result.json").read_bytes())
    assert result["rollouts"] == 6 and set(result["hashes"]) == {"harness", "data", "weights"}
    assert len(Path("run/test/episodes.jsonl").read_bytes().splitlines()) == 6


@pytest.mark.slow
def test_train_stopped_by_ctrl_c_goes_on_to_its_report(model: str) -> None:
    argv = [sys.executable, "-m", "whale_train.cli", "train", "--policy", model, "--out", "run"]
    argv += ["--epochs", "0.02", "--prompts", "10", "--group", "2", "--repeats", "1", "--limit", "4"]
    # a shell that starts us in the background has its children ignore Ctrl-C
    heed = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, preexec_fn=heed, start_new_session=True) as stopped:
        while not Path("run/arms/weights-only/state.json").exists():
            assert stopped.poll() is None, stopped.stderr and stopped.stderr.read()
            time.sleep(0.2)
        os.killpg(stopped.pid, signal.SIGINT)  # a terminal tells the workers and the jails, too
        assert stopped.stderr is not None
        said = stopped.stderr.read()
    assert stopped.returncode == 130
    assert said.splitlines()[-1] == "whale: stopped; the same command goes on from here" and "Traceback" not in said
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout.strip() == "run/report.html"
    result = json.loads(Path("run/result.json").read_bytes())
    assert result["rollouts"] == 40 and set(result["initial"]) == {"mean@1", "ci95"}


@pytest.mark.slow
def test_search_ends_with_a_shadow_score(model: str) -> None:
    argv = ["search", "--policy", model, "--out", "run", "--rounds", "1", "--candidates", "1", "--tasks", "6"]
    assert cli.main([*argv, "--repeats", "1", "--limit", "4"]) == 0
    result = json.loads(Path("run/result.json").read_bytes())
    assert result["search"]["optimism"] >= 0 and result["search"]["confirmed"] is None
    assert {"initial", "final", "shadow", "rollouts", "seconds", "command"} <= set(result)
    assert result["shadow"].keys() == {"mean@8", "ci95", "sets", "tasks", "initial", "gain"}
    assert "On shadow tasks, which no proposer saw" in Path("run/report.html").read_text()
    assert Path("run/report.png").exists()


@pytest.mark.parametrize(
    ("argv", "module", "typed"),
    [
        (["/somewhere/bin/whale", "run", "--out", "a b"], None, "whale run --out 'a b'"),
        (["benchmarks/run.py", "--seeds", "0"], None, "python benchmarks/run.py --seeds 0"),
        (["/home/me/benchmarks/run.py"], None, "python run.py"),
        (["/somewhere/whale_train/cli.py", "run"], "whale_train.cli", "python -m whale_train.cli run"),
        ([""], None, "python"),
    ],
)
def test_a_record_has_the_command_as_it_was_typed_and_no_path_of_this_machine(argv, module, typed, monkeypatch):
    main = types.ModuleType("__main__")
    main.__spec__ = module and importlib.machinery.ModuleSpec(module, None)
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert command_line() == typed
