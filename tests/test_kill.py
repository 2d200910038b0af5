"""A run that is killed at any moment and started again ends as one that was left alone."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from whale_envs.harness.load import load_harness

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]  # whole runs, and many that are killed

SIZES = "--cycles 1 --epochs 0.06 --prompts 32 --group 4 --rounds 2 --candidates 2 --tasks 24 --repeats 1 --limit 32"
ARMS = ("whale", "weights-only", "harness-only")
#: What progress says when each part of a run is under way, by arm.
MOMENTS = [
    ("whale", "cycle 1 weights"),
    ("whale", "cycle 1 harness"),
    ("harness-only", "cycle 1 harness"),
    ("weights-only", "cycle 1 weights"),
    ("whale", "testing"),
]


def start(out: Path, *args: str) -> subprocess.Popen[bytes]:
    args = args or ("run", "--seed", "3", *SIZES.split())
    command = [sys.executable, "-m", "whale_train.cli", *args, "--out", str(out)]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, env=env)


def kill_when(out: Path, arm: str, phase: str) -> None:
    """Start the run and kill it with SIGKILL as soon as `arm` says that it is in `phase`, some way in."""
    process = start(out)
    path = out / "arms" / arm / "progress.json"
    before = path.stat().st_mtime_ns if path.exists() else 0
    deadline = time.monotonic() + 240
    while process.poll() is None and time.monotonic() < deadline:
        if path.exists() and path.stat().st_mtime_ns > before:
            shot = json.loads(path.read_bytes())
            if shot["phase"].startswith(phase) and shot["phase_done"] > 0:
                break
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()


def workers_of(out: Path) -> list[str]:
    """Command lines of processes that still write into the run folder."""
    found = []
    for fds in Path("/proc").glob("[0-9]*/fd"):
        try:
            if any(os.readlink(fd).startswith(str(out)) for fd in fds.iterdir()):
                found.append((fds.parent / "cmdline").read_text())
        except OSError:
            continue  # it ended meanwhile, or is not ours to look at
    return found


def outcome(out: Path) -> dict[str, object]:
    """Everything in a run's results that is not a time."""
    result = json.loads((out / "result.json").read_bytes())
    curves = {arm: (out / "arms" / arm / "curve.jsonl").read_text() for arm in ARMS}
    harnesses = {arm: (out / "arms" / arm / "harness.py").read_text() for arm in ARMS}
    return {k: result[k] for k in ("initial", "final", "arms", "rollouts")} | {"curves": curves, "harnesses": harnesses}


def kill_after(out: Path, seconds: float) -> bool:
    """Start the run and kill it so many seconds after it has begun to write; whether it was still alive."""
    process, begun = start(out), time.time()
    while process.poll() is None and not any(path.stat().st_mtime > begun for path in out.glob("arms/*/*.json")):
        time.sleep(0.01)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    alive = process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return alive


def finish(out: Path) -> dict[str, object]:
    """Let the run come to its end."""
    process = start(out)
    _, said = process.communicate(timeout=600)
    assert process.returncode == 0, said.decode()
    return outcome(out)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return finish(tmp_path_factory.mktemp("calm") / "run")


def test_a_run_killed_in_each_of_its_phases_ends_with_the_numbers_of_one_left_alone(tmp_path, undisturbed):
    for arm, phase in MOMENTS:
        kill_when(tmp_path / "run", arm, phase)
        time.sleep(0.2)
        assert workers_of(tmp_path / "run") == [], "a worker outlived the run"
    assert finish(tmp_path / "run") == undisturbed


def test_a_run_killed_at_twenty_random_moments_ends_with_the_numbers_of_one_left_alone(tmp_path, undisturbed):
    rng = random.Random(0)
    killed = [kill_after(tmp_path / "run", 4 * rng.random() ** 2) for _ in range(20)]
    assert sum(killed) >= 10, "most kills came after its end"
    assert finish(tmp_path / "run") == undisturbed


def test_a_harness_file_that_is_edited_while_a_run_goes_on_changes_nothing_of_it(tmp_path):
    mine, out = tmp_path / "mine.py", tmp_path / "run"
    mine.write_text(load_harness("h0", "math").source)
    sizes = "--domain math --rounds 1 --candidates 1 --tasks 16 --limit 8 --repeats 1".split()
    process = start(out, "search", "--harness", str(mine), *sizes)
    deadline = time.monotonic() + 120
    while not (state := out / "arms" / "harness-only" / "state.json").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    mine.write_text("no harness any more")
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said.decode()
    first = json.loads(state.read_bytes())[0]["harness"]
    assert first == json.loads((out / "result.json").read_bytes())["hashes"]["harness"]
