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
from whale_train.ledger import Ledger

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]  # whole runs, and many that are killed

#: A bandit's phases are of the kind that gained more: what one measured decides what the next one is.
SIZES = "--schedule bandit --epochs 0.06 --rounds 2 --budget-rollouts 600 --prompts 32 --group 1 --candidates 2"
SIZES += " --tasks 24 --repeats 1 --limit 32"
ARMS = ("whale", "weights-only", "harness-only")
#: What progress says when each part of a run is under way, by arm.
MOMENTS = [
    ("weights-only", "cycle 1 weights"),
    ("whale", "cycle 1 weights"),
    ("whale", "cycle 1 harness"),
    ("whale", "cycle 2"),
    ("harness-only", "cycle"),
    ("whale", "testing"),
]


def start(out: Path, *args: str) -> subprocess.Popen[bytes]:
    args = args or ("run", "--seed", "3", *SIZES.split())
    command = [sys.executable, "-m", "whale_train.cli", *args, "--out", str(out)]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, env=env)


def kill_when(out: Path, arm: str, phase: str) -> dict[int, str]:
    """Start the run and kill it with SIGKILL as soon as `arm` says that it is in `phase`, some way in; returns the
    processes that it had then."""
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
    children = children_of(process.pid)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return children


def children_of(pid: int) -> dict[int, str]:
    """The processes below one, with their command lines."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            parents.setdefault(int(stat.read_text().rpartition(")")[2].split()[1]), []).append(int(stat.parent.name))
    found: dict[int, str] = {}
    for child in parents.get(pid, []):
        with contextlib.suppress(OSError):
            found[child] = Path(f"/proc/{child}/cmdline").read_text().replace("\0", " ")
        found |= children_of(child)
    return found


def alive(pid: int, command: str) -> bool:
    """Whether that process still runs; one that waits to be buried, which has no command line, does not."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ") == command != ""
    except OSError:
        return False


def outcome(out: Path) -> dict[str, object]:
    """Everything in a run's results that is not a time."""
    result = json.loads((out / "result.json").read_bytes())
    curves = {arm: (out / "arms" / arm / "curve.jsonl").read_text() for arm in ARMS}
    harnesses = {arm: (out / "arms" / arm / "harness.py").read_text() for arm in ARMS}
    states = {arm: (out / "arms" / arm / "state.json").read_text() for arm in ARMS}  # why a phase ended, what it gained
    ledgers = {arm: Ledger(out / "arms" / arm / "ledger.jsonl").by_kind() for arm in ARMS}
    spent = {arm: {kind: total.rollouts for kind, total in kinds.items()} for arm, kinds in ledgers.items()}
    kept = {k: result[k] for k in ("initial", "final", "arms", "rollouts")}
    return kept | {"curves": curves, "harnesses": harnesses, "states": states, "spent": spent}


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
    calm = finish(tmp_path_factory.mktemp("calm") / "run")
    phases = [s["phase"] for s in json.loads(calm["states"]["whale"])]
    assert phases[1:3] == ["cycle 1 weights", "cycle 1 harness"] and phases[3].startswith("cycle 2")
    return calm


def test_a_run_killed_in_each_of_its_phases_ends_with_the_numbers_of_one_left_alone(tmp_path, undisturbed):
    for arm, phase in MOMENTS:
        children = kill_when(tmp_path / "run", arm, phase)
        assert len(children) >= 2, f"{arm} {phase}: workers and jails were at work"
        deadline = time.monotonic() + 10
        while left := [command for pid, command in children.items() if alive(pid, command)]:
            assert time.monotonic() < deadline, f"outlived the run: {left}"
            time.sleep(0.05)
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
