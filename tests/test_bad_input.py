"""What a person gives that cannot be used: one clear line, exit code 2, before anything expensive, nothing lost."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_run import make_run
from mistakes import one_line

from whale_train import cli
from whale_train.policies import load
from whale_train.policies.find import find_model
from whale_train.policies.scripted import ScriptedPolicy
from whale_train.tiny import MODELS

HARNESS = """
from whale_envs.harness import user
def run(task, tools):
    reply = yield [user("q")]
    return reply.text
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ScriptedPolicy:
    """An empty folder to work in, without keys; a policy that answers "x" in every policy's place."""
    monkeypatch.chdir(tmp_path)
    for key in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(key, raising=False)
    policy = ScriptedPolicy(lambda request: "<answer>x</answer>")
    monkeypatch.setattr(load, "load_policy", lambda *args: policy)
    return policy


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, to be copied."""
    return make_run(tmp_path_factory.mktemp("made") / "run", tasks=2, arms=("whale",))


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


@contextlib.contextmanager
def heeding_permissions() -> Iterator[None]:
    """Root without CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH (linux/capability.h: 1 and 2), as everybody else is."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, before, without = _Header(0x20080522, 0), (_Sets * 2)(), (_Sets * 2)()
    assert libc.capget(ctypes.byref(header), before) == libc.capget(ctypes.byref(header), without) == 0
    without[0].effective &= ~0b110
    assert libc.capset(ctypes.byref(header), without) == 0
    try:
        yield
    finally:
        assert libc.capset(ctypes.byref(header), before) == 0


# numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("eval --repeats -1", "--repeats -1: expected more than 0"),
        ("eval --limit 0", "--limit 0: expected more than 0"),
        ("eval --repeats 99999999999999999999", "--repeats 1e+20: expected at most 1,000,000"),
        ("eval --seed 99999999999999999999", "--seed 99999999999999999999: expected 0 to 9223372036854775807"),
        ("train --epochs 1e308", "--epochs 1e+308: expected at most"),
        ("train --epochs inf", "--epochs inf: expected at most"),
        ("train --lr nan", "--lr nan: expected more than 0"),
        ("train --prompts 1025", "--prompts 1025: search-qa mini world, weight has 1024 tasks; give at most as many"),
        ("run --cycles 100000000000", "--cycles 1e+11: expected at most"),
        ("data prepare math --source x.jsonl --out o --seed -1", "--seed -1: expected 0 to"),
        ("audit strong --tasks 0", "--tasks 0: expected more than 0"),
        ("serve-retrieval c.jsonl --port 65536", "--port 65536: expected 0 to 65535"),
        ("index build c.jsonl --out o --shard 0", "--shard 0: expected 1 to 2,147,483,647"),
    ],
)
def test_a_number_that_cannot_be_meant(capsys: pytest.CaptureFixture[str], argv: str, expected: str) -> None:
    assert expected in one_line(capsys, *argv.split())
    assert list(Path().iterdir()) == []


# models -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("config.json", None, "has no config.json"),
        ("config.json", b'{"model_type": "qw', "config.json is no JSON"),
        ("config.json", b"[]", "holds a JSON list: expected an object"),
        ("config.json", b"{}", "names no model_type"),
        ("model.safetensors", None, "has no weights"),
        ("model.safetensors", b"", "model.safetensors is not whole"),
        ("model.safetensors", b"hello", "model.safetensors is not whole"),
        ("model.safetensors", -1000, "model.safetensors is not whole"),
        ("tokenizer.json", None, "has no tokenizer"),
        ("tokenizer.json", -1000, "tokenizer.json is no JSON"),
    ],
)
def test_a_folder_that_is_no_model(
    capsys: pytest.CaptureFixture[str], name: str, content: bytes | int | None, expected: str
) -> None:
    shutil.copytree(MODELS / "math", "model")
    path = Path("model", name)
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content if isinstance(content, bytes) else path.read_bytes()[:content])
    assert expected in one_line(capsys, "eval", "--domain", "math", "--policy", "hf:model")
    assert not Path("runs").exists()


def test_a_folder_that_holds_nothing_is_no_model(capsys: pytest.CaptureFixture[str]) -> None:
    Path("model").mkdir()
    assert "model is empty" in one_line(capsys, "eval", "--policy", "hf:model")
    assert find_model("tiny", "math") == (str(MODELS / "math"), "tiny:math")


def test_mistakes_are_heard_of_without_torch(capsys: pytest.CaptureFixture[str]) -> None:
    Path("broken.py").write_text("def run(task, tools):\n    yield [\n")
    Path("q.jsonl").write_text("nonsense\n")
    shutil.copytree(MODELS / "math", "model")
    Path("model", "model.safetensors").write_bytes(b"")
    Path("taken").mkdir()
    Path("taken", "thesis.tex").write_text("x")
    mistakes = [
        "eval --harness nowhere.py",
        "run --harness broken.py",
        "audit broken.py",
        "train --policy hf:model",
        "search --proposer anthropic",
        "eval --domain math --dataset q.jsonl",
        "search --out taken",
        "eval --out taken",
        "audit strong --out taken",
        "report taken",
        "archive taken",
        "data prepare math --source q.jsonl --out o",
    ]
    code = f"""
import sys
from whale_train import cli
print([cli.main(argv.split()) for argv in {mistakes!r}], "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout == f"{[2] * len(mistakes)} False\n", done.stderr
    assert sum(line.startswith("whale: ") for line in done.stderr.splitlines()) == len(mistakes)


# places -----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="capabilities are Linux's")
@pytest.mark.parametrize(
    ("argv", "closed", "expected"),
    [
        ("eval --harness mine.py", "mine.py", "cannot read harness mine.py: Permission denied"),
        ("eval --policy hf:model", "model/config.json", "cannot read model/config.json: Permission denied"),
        ("eval --policy hf:model", "model/model.safetensors", "model/model.safetensors: Permission denied"),
        ("eval --dataset q.jsonl,corpus=c.jsonl", "q.jsonl", "cannot read q.jsonl: Permission denied"),
        ("eval --dataset q.jsonl,corpus=c.jsonl", "c.jsonl", "cannot read c.jsonl: Permission denied"),
        ("eval --dataset data,corpus=c.jsonl", "data", "data/card.json: Permission denied"),
        ("eval --out place/run", "place", "cannot write to place/run: Permission denied"),
        ("eval --out place", "place", "Permission denied; give another --out"),
        ("eval --out held", "held/run.json", "cannot read held/run.json: Permission denied"),
        ("report run --out place", "place", "cannot write place/report.png: Permission denied"),
        ("report run --out place/new", "place", "cannot write place/new/report.png: Permission denied"),
        ("data prepare search-qa --source q.jsonl --out place/new", "place", "place/new/card.json: Permission denied"),
        ("data prepare search-qa --source q.jsonl --out place", "place", "place/card.json: Permission denied"),
        ("index build c.jsonl --out place/new", "place", "cannot write to place/new: Permission denied"),
        ("archive run", "run", "Permission denied"),
    ],
)  # fmt: skip
def test_what_may_not_be_used(
    capsys: pytest.CaptureFixture[str], made: Path, argv: str, closed: str, expected: str
) -> None:
    Path("mine.py").write_text(HARNESS)
    shutil.copytree(MODELS / "search-qa", "model")
    row = {"question": "Who is near the river?", "answers": ["Town"]}
    Path("q.jsonl").write_text(
        "".join(json.dumps(row | {"question": f"Who is near river {i}?"}) + "\n" for i in "abcd")
    )
    Path("c.jsonl").write_text('{"id": "1", "title": "t", "text": "x"}\n')
    for folder in ("place", "data"):
        Path(folder).mkdir()
    Path("held").mkdir()
    Path("held/run.json").write_text("{}")
    shutil.copytree(made, "run")
    mode = Path(closed).stat().st_mode
    Path(closed).chmod(0)
    try:
        with heeding_permissions():
            assert expected in one_line(capsys, *argv.split())
    finally:
        Path(closed).chmod(mode)


@pytest.mark.parametrize("argv", ["--help", "archive run"])
def test_output_that_nobody_reads_or_nothing_takes(made: Path, argv: str) -> None:
    shutil.copytree(made, "run")
    command = [sys.executable, "-m", "whale_train.cli", *argv.split()]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (2, "whale: no space left: free some, then run the same command again\n")
    reading, writing = os.pipe()
    os.close(reading)  # as `| head` does when it has read enough
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=120)
    os.close(writing)
    assert done.returncode != 0 and done.stderr == ""


# what became of a run folder --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("test/evaluation.json", slice(-20)),
        ("test/evaluation.json", slice(0)),
        ("test/episodes.jsonl", slice(-20)),
        ("test/episodes.jsonl", "but the last line"),
        ("test/episodes.jsonl", "not in UTF-8"),
        ("test/episodes.jsonl", None),
    ],
)
def test_a_damaged_evaluation_is_named_and_played_again(
    capsys: pytest.CaptureFixture[str], name: str, kept: slice | str | None
) -> None:
    argv = ["eval", "--limit", "3", "--repeats", "2", "--out", "run"]
    assert cli.main(argv) == 0
    path, result, said = Path("run", name), Path("run/result.json").read_bytes(), capsys.readouterr().out
    episodes = Path("run/test/episodes.jsonl").read_bytes()
    content = path.read_bytes()
    if isinstance(kept, slice):
        path.write_bytes(content[kept])
    elif kept == "but the last line":
        path.write_bytes(b"".join(content.splitlines(keepends=True)[:-1]))
    elif kept == "not in UTF-8":
        path.write_bytes(content.replace(b'"task_id":"', b'"task_id":"\xff', 1))
    if kept is not None:
        line = one_line(capsys, *argv)
        assert f"run/{name}" in line and "is damaged" in line and "remove the file, and the same command" in line
    path.unlink()
    assert cli.main(argv) == 0
    assert capsys.readouterr().out == said
    times = {"seconds": None}
    assert json.loads(Path("run/result.json").read_bytes()) | times == json.loads(result) | times
    played = Path("run/test/episodes.jsonl").read_bytes()
    assert [json.loads(e) | times for e in played.splitlines()] == [
        json.loads(e) | times for e in episodes.splitlines()
    ]


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("run.json", "report run"),
        ("result.json", "report run"),
        ("arms/whale/state.json", "report run"),
        ("arms/whale/archive/archive.json", "archive run"),
        ("arms/whale/archive/archive.json", "diff run a b"),
        ("test/whale-0/evaluation.json", "report run"),
    ],
)
def test_a_damaged_file_of_a_run_is_named(
    capsys: pytest.CaptureFixture[str], made: Path, name: str, command: str
) -> None:
    shutil.copytree(made, "run")
    for content in (b"", b"{", b'"\xff"'):
        Path("run", name).write_bytes(content)
        assert f"run/{name}" in one_line(capsys, *command.split())


# signals ----------------------------------------------------------------------------------------------------------

#: Sends this process a signal as it begins to import a module, then runs a command.
INTERRUPTED = """
import os, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), {number})

sys.meta_path.insert(0, Interrupts())
from whale_train.cli import main
sys.exit(main(["eval", "--limit", "2"]))
"""


@pytest.mark.parametrize(
    ("module", "number"),
    [("whale_envs", signal.SIGINT), ("tyro", signal.SIGTERM), ("bm25s", signal.SIGINT), ("torch", signal.SIGTERM)],
)
def test_a_signal_while_modules_are_imported_is_one_line(module: str, number: signal.Signals) -> None:
    heeding = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # these tests may run as `&`
    code = f"{heeding}\n{INTERRUPTED.format(module=module, number=int(number))}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 128 + number
    assert done.stderr == "whale: stopped; the same command goes on from here\n"


def test_a_signal_that_is_ignored_stays_so() -> None:
    code = INTERRUPTED.format(module="tyro", number=int(signal.SIGINT)).replace('["eval", "--limit", "2"]', '["evl"]')
    ignoring = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n{code}"  # as a shell has it for `&`
    done = subprocess.run([sys.executable, "-c", ignoring], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "evl" in done.stderr
