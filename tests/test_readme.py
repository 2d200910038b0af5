"""The README's code does what it says: Python blocks run as they stand, commands run with small sizes."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"^```(\w+) ?(\S*)\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)
PYTHON = [(kind, code) for language, kind, code in BLOCKS if language == "python" and not kind.startswith("file=")]
COMMANDS = [
    line.partition("#")[0].strip()
    for language, _, code in BLOCKS
    if language == "console"
    for line in code.splitlines()
] + re.findall(r"^    (whale .*)", README.read_text(), re.MULTILINE)
#: Options that make a command of the README small enough for a test.
SMALL = {
    "eval": "--limit 4 --repeats 1",
    "train": "--limit 4 --repeats 1 --prompts 16 --group 2 --epochs 0.01",
    "search": "--limit 4 --repeats 1 --rounds 1 --candidates 1 --tasks 8",
    "diagnose": "--limit 4 --repeats 1 --budget-rollouts 96 --prompts 8 --group 2 --candidates 1 --tasks 8",
    "run": "--limit 4 --repeats 1 --cycles 1 --prompts 16 --group 2 --epochs 0.01 --rounds 1 --candidates 1 --tasks 8",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An empty folder with the files that the README tells a reader to save."""
    path = tmp_path_factory.mktemp("newcomer")
    for _, kind, code in BLOCKS:
        if kind.startswith("file="):
            (path / kind.removeprefix("file=")).write_text(code)
    return path


def run(command: list[str], folder: Path) -> str:
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_readme_shows_a_harness_of_at_most_twenty_lines(folder):
    assert len([line for line in (folder / "mine.py").read_text().splitlines() if line.strip()]) <= 20


def test_the_first_episode_of_the_readme_finds_its_answer(capsys):
    (code,) = [code for kind, code in PYTHON if kind != "real" and "env.step" in code]
    exec(code, {})
    said = capsys.readouterr().out
    assert "· score 1 ·" in said and said.splitlines()[-1].startswith("1.0 {"), said


@pytest.mark.slow
@pytest.mark.parametrize("code", [code for kind, code in PYTHON if kind != "real"])
def test_python_blocks_run_as_they_stand(code, folder):
    assert run([sys.executable, "-W", "error", "-c", code], folder)


@pytest.mark.slow
@pytest.mark.skipif("WHALE_REAL_DATA" not in os.environ, reason="WHALE_REAL_DATA is not set: no real files to try")
@pytest.mark.parametrize("code", [code for kind, code in PYTHON if kind == "real"])
def test_blocks_on_real_files_run_on_such_files(code, folder):
    real = Path(os.environ["WHALE_REAL_DATA"])
    names = {
        "lichess_puzzles.csv": "chess/lichess_puzzles_1000.csv",
        "problems.jsonl": "math/aime2024.jsonl",
        "questions.jsonl": "qa/qa_dev_eval.jsonl",
        "corpus.jsonl.gz": "qa/corpus_wiki.jsonl.gz",
    }
    for name, path in names.items():
        if not (folder / name).exists():
            (folder / name).symlink_to(real / path)
    assert run([sys.executable, "-W", "error", "-c", code], folder)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_run(command, folder):
    program, verb, *rest = shlex.split(command)
    assert program == "whale"
    if verb == "report":  # of the run that an earlier command made
        assert "runs/run-search-qa-0" in rest
    small = shlex.split(SMALL.get(verb, ""))
    rest = [word for i, word in enumerate(rest) if "--cycles" not in rest[max(0, i - 1) : i + 1]]
    run([sys.executable, "-m", "whale_train.cli", verb, *rest, *small], folder)
