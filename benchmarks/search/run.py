"""What racing saves and loses, and how many rollouts each way of accepting takes to a good harness.

Harness phases with the bundled models and the mutation proposer are recorded once (and kept, so that a run which was
stopped goes on), then replayed with their tasks in random orders (`replay.py`). Phases that
raced are recorded too: their rollouts are real ones. Last, an archive of 1,000 candidates is opened, listed and
gone on with.

    OMP_NUM_THREADS=1 python benchmarks/search/run.py
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import replay
import tyro

from whale_envs import load_domain
from whale_envs.harness.load import load_harness
from whale_train.archive_commands import show_archive
from whale_train.ledger import Ledger
from whale_train.meta_harness import racing
from whale_train.meta_harness.archive import Archive, read_archive
from whale_train.meta_harness.optimism import estimated_optimism
from whale_train.meta_harness.proposers.mutation import MutationProposer
from whale_train.meta_harness.records import Candidate, Outcome, Phase, Round, Score, ScoreKey
from whale_train.meta_harness.search import SearchSettings, search
from whale_train.policies.load import load_policy
from whale_train.progress import Silent

#: The phases that are recorded: the paper's 6 rounds, of 8 candidates on 128 tasks, as many as the bundled model needs.
MODES: dict[str, SearchSettings] = {
    "best": SearchSettings(candidates=8, tasks=128),
    "racing": SearchSettings(candidates=8, tasks=128, racing=True),
}
LEVELS = (0.01, 0.02, 0.03, 0.05, 0.1, 0.15, 0.2)
#: Random orders of the tasks for each recorded phase.
ORDERS = 200
#: A good harness has this share of the gain from the first to the best one of the phase.
GOOD = 0.8


def record(folder: Path, mode: str, domain: str, seed: int) -> Path:
    """The archive of a harness phase, played as far as it is not on file."""
    home = folder / mode / f"{domain}-{seed}"
    archive, ledger = Archive(home / "archive", domain), Ledger(home / "ledger.jsonl")
    policy, start = load_policy("tiny", domain), load_harness("h0", domain)
    search(
        policy, load_domain(domain), start, MODES[mode], archive, MutationProposer(), ledger, Silent(), seed, "search"
    )
    return home / "archive"


def real(folder: Path) -> dict[str, Any]:
    """What a recorded phase came to: rollouts, and what it accepted."""
    archive, ledger = read_archive(folder), Ledger(folder.parent / "ledger.jsonl")
    assert archive.phase is not None
    last, key = archive.rounds[-1], str(archive.phase.score_key)
    scores = [c.scores[key] for c in archive.candidates[1:] if key in c.scores]
    full = max(s.n for c in archive.candidates for s in c.scores.values())
    return {
        "rollouts": ledger.rollouts(),
        "saved": round(1 - sum(s.n for s in scores) / (full * len(scores)), 3),
        "dropped": [s.n for s in scores if s.dropped],
        "accepted mean": last.accepted_mean,
        "estimated optimism": round(estimated_optimism(archive, archive.phase.score_key), 4),
    }


def races(recorded: Sequence[replay.Recorded], level: float) -> dict[str, Any]:
    """Races at a level, over random orders of the tasks of each phase."""
    rng, found = np.random.default_rng(0), dict[str, list[replay.Race]]()
    for phase in recorded:
        tasks = phase.scores.shape[1]
        found[phase.name] = [replay.race(phase.of(rng.permutation(tasks)), level) for _ in range(ORDERS)]
    every = [r for rs in found.values() for r in rs]
    return {
        "saved": round(statistics.fmean(r.saved for r in every), 3),
        "lost": round(statistics.fmean(r.lost for r in every), 4),
        "points lost": round(statistics.fmean(r.points for r in every), 3),
        "saved by phase": {name: round(statistics.fmean(r.saved for r in rs), 3) for name, rs in found.items()},
        "lost by phase": {name: round(statistics.fmean(r.lost for r in rs), 4) for name, rs in found.items()},
    }


def to_quality(recorded: Sequence[replay.Recorded], rule: str) -> dict[str, Any]:
    """Rollouts until the accepted harness is good, judged by all tasks of a phase, of which the search sees half."""
    rng, needed, ends, worse, spent = np.random.default_rng(0), list[float](), list[float](), list[int](), list[int]()
    for phase in recorded:
        means = phase.means
        good = means[0] + GOOD * (means.max() - means[0])
        for _ in range(ORDERS):
            path = list(replay.search(phase, rng.permutation(phase.scores.shape[1]), rule))
            needed.append(next((float(rollouts) for rollouts, now in path if means[now] >= good), float("inf")))
            ends.append((means[path[-1][1]] - means[0]) / (means.max() - means[0]))
            worse.append(sum(means[b] < means[a] for (_, a), (_, b) in itertools.pairwise(path)))
            spent.append(path[-1][0])
    reached = [n for n in needed if n < float("inf")]
    return {
        "reached": round(len(reached) / len(needed), 3),
        "rollouts to quality, median of those that reach it": statistics.median(reached) if reached else None,
        "rollouts of the phase, mean": round(statistics.fmean(spent)),
        "share of the gain at the end, mean": round(statistics.fmean(ends), 3),
        "steps to a worse harness, mean": round(statistics.fmean(worse), 3),
    }


def thousand() -> dict[str, float]:
    """Processor seconds that an archive of 1,000 candidates with 256 outcomes each takes, the best of three."""
    with tempfile.TemporaryDirectory() as folder:
        key, rng = ScoreKey("w", "d", 0), np.random.default_rng(0)
        archive = Archive(Path(folder), "math")
        for number in range(1000):
            name, solved = f"{number:012x}", rng.random(256) < 0.2 + number / 4000
            parents = [f"{number // 7 * 7 - 7:012x}"] if number > 6 else []
            score = Score(float(solved.mean()), 0.03, 256, 2.0, f"unit {number}")
            archive.candidates.append(
                Candidate(name, name, f"Number {number}.", parents, ["x"], "born", "", {str(key): score})
            )
            archive.files(name).mkdir(parents=True)
            lines = [Outcome(str(key), f"t{i}", float(right), "", 2) for i, right in enumerate(solved)]
            (archive.files(name) / "outcomes.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, lines)) + b"\n")
        archive.begin(Phase("search", key), "0" * 12)
        archive.finish_round(Round("search", 1, [], "0" * 12, 0.2))

        def show() -> None:
            with contextlib.redirect_stdout(io.StringIO()):
                show_archive(Path(folder))

        def go_on() -> None:
            again = Archive(Path(folder), "math")
            again.begin(Phase("search", key), again.accepted)
            again.finish_round(Round("search", 2, [], again.accepted, 0.2))

        return {
            "open and list": _best_of(lambda: Archive(Path(folder), "math").scored()),
            "resume and end a round": _best_of(go_on),
            "whale archive": _best_of(show),
        }


def _best_of(work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(3):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return round(min(seconds), 3)


def main(
    folder: Path = Path("runs/benchmark-search"),
    best: tuple[str, ...] = ("search-qa:0", "math:0", "chess:0"),
    racing_too: tuple[str, ...] = ("math:0",),
) -> None:
    """Run the benchmark and write results.json beside this file.

    Args:
        folder: where recorded phases are kept.
        best: phases that are recorded by `best` and replayed, as domain:seed.
        racing_too: phases that are also recorded with racing.
    """
    asked = [("best", p) for p in best] + [("racing", p) for p in racing_too]
    played: dict[str, dict[str, Any]] = {mode: {} for mode in MODES}
    recorded: list[replay.Recorded] = []
    for mode, phase in asked:
        domain, _, seed = phase.partition(":")
        archive = record(folder, mode, domain, int(seed))
        played[mode][phase] = real(archive)
        if mode == "best":
            recorded.append(replay.read(archive, phase))
    results = {
        "command": " ".join(["python", "benchmarks/search/run.py", *sys.argv[1:]]),
        "machine": f"{platform.machine()}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} before",
        "versions": {"python": platform.python_version(), "torch": version("torch"), "numpy": version("numpy")},
        "recorded phases": played,
        "races": {str(level): races(recorded, level) for level in LEVELS},
        "level in use": racing.LEVEL,
        "rollouts to quality": {
            rule: to_quality(recorded, rule) for rule in ("best", "paired", "racing", "racing and paired")
        },
        "1,000 candidates, processor seconds": thousand(),
    }
    Path(__file__).with_name("results.json").write_text(json.dumps(results, indent=2) + "\n")
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    tyro.cli(main)
