"""What a report is made from: run folders, read into plain structures. See `whale_train.report` for the files."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from whale_envs import Episode
from whale_envs.episode import read_episodes, read_json
from whale_envs.errors import UserError
from whale_envs.task import SPLITS
from whale_train.evaluate import load_evaluation
from whale_train.ledger import Ledger, Spent
from whale_train.meta_harness.archive import Archive
from whale_train.meta_harness.records import Round, last_rounds
from whale_train.metrics import Estimate, paired_difference
from whale_train.run_folder import RunInfo, read_run

#: The arms that a run may have, in the order shown, and what they are called.
ARMS = {"whale": "WHALE", "weights-only": "weights only", "harness-only": "harness only"}
#: Kinds of phases, as points of a curve give them.
WEIGHTS, HARNESS = "weights", "harness"


class Point(msgspec.Struct, frozen=True):
    """A point of an arm's curve: what was tested after so many cumulative rollouts, and how it did.

    `kind` is "start", or that of the phase which led here; `k` is the repeats of the mean; `test` names the folder
    under `test/` that holds the evaluation.
    """

    rollouts: int
    mean: float
    low: float
    high: float
    k: int
    phase: str
    kind: str
    cycle: int
    harness: str
    weights: str
    test: str


class Ended(msgspec.Struct, frozen=True):
    """A phase that has ended, as `state.json` has it (`whale_train.whale.Snapshot`): its name and kind, all rollouts so
    far, what ended it early, if anything did, its training signal, and what it gained by that. The first is the
    start."""

    phase: str
    kind: str
    rollouts: int
    why: str = ""
    signal: list[float] = []
    gain: float = 0.0


class Step(msgspec.Struct, frozen=True):
    """A harness that was accepted, the one that the search started from first: when that was, and its search score
    then, under the weights of that time; None for one that has not played."""

    hash: str
    when: str
    hypothesis: str
    axes: list[str]
    score: float | None
    source: str


@dataclass
class Arm:
    """One arm of a run, with what its tests say; `searched` has the last round of each search."""

    name: str
    folder: Path
    curve: list[Point]
    ledger: dict[str, Spent]
    phases: list[Ended] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    searched: list[Round] = field(default_factory=list)
    candidates: int = 0

    @property
    def label(self) -> str:
        """How people call it."""
        return ARMS.get(self.name, self.name)

    def scores(self, at: int) -> dict[str, list[float]]:
        """Scores by task of the point at this index of the curve; empty when its test is not on disk."""
        kept = load_evaluation(self._test(at))
        return kept.scores if kept is not None else {}

    def behaviours(self, at: int) -> dict[str, float]:
        """Behaviour rates of the point at this index of the curve; empty when its test is not on disk."""
        kept = load_evaluation(self._test(at))
        return kept.behaviours if kept is not None else {}

    def sets(self, at: int) -> dict[str, Estimate]:
        """Means by data set of the point at this index of the curve; empty where the test tasks are of one."""
        kept = load_evaluation(self._test(at))
        return kept.sets if kept is not None else {}

    def episodes(self, at: int) -> list[Episode]:
        """The test episodes of the point at this index of the curve; empty when they are not on disk."""
        path = self._test(at) / "episodes.jsonl"
        return list(read_episodes(path)) if path.exists() else []

    def _test(self, at: int) -> Path:
        return self.folder.parent.parent / "test" / self.curve[at].test


@dataclass
class Run:
    """A run folder as a report shows it."""

    folder: Path
    info: RunInfo
    arms: list[Arm]
    result: dict[str, Any]

    @property
    def k(self) -> int:
        """Episodes of each test task."""
        return self.arms[0].curve[0].k

    @property
    def test_set(self) -> str:
        """The hash of the test tasks."""
        return dict(zip(SPLITS, self.info.hashes["data"].split("-"), strict=True))["test"]


def read_report(folder: Path) -> Run:
    """Read a run folder, finished or not. Raises `UserError` when it is none, or nothing has been tested in it."""
    info = read_run(folder)
    if info.kind not in ("run", "train", "search"):
        raise UserError(f"{folder} holds a whale {info.kind}, which has no report: its result is in result.json")
    root = folder / "arms"
    names = sorted((p.name for p in root.iterdir() if p.is_dir()), key=_rank) if root.is_dir() else []
    arms = [_arm(root / name, info) for name in names]
    path = folder / "result.json"
    result = read_json(path, dict[str, Any]) if path.exists() else {}
    for arm in arms:
        if result and not arm.curve:
            raise UserError(f"{arm.folder / 'curve.jsonl'} is gone or empty: `{info.command}` writes it again")
    arms = [arm for arm in arms if arm.curve]
    if not arms:
        raise UserError(f"{folder} has no tested point yet: let `{info.command}` get past its first test, then report")
    if info.hashes.get("data", "").count("-") != len(SPLITS) - 1:
        raise UserError(f"{folder / 'run.json'} is malformed (its data has no hash a split): remove it and run again")
    return Run(folder, info, arms, result)


def _rank(name: str) -> tuple[int, str]:
    return (list(ARMS).index(name) if name in ARMS else len(ARMS), name)


def _arm(folder: Path, info: RunInfo) -> Arm:
    curve = folder / "curve.jsonl"
    points = (
        [_point(curve, i, line) for i, line in enumerate(curve.read_bytes().splitlines())] if curve.exists() else []
    )
    state = folder / "state.json"
    phases = read_json(state, list[Ended]) if state.exists() else []
    arm = Arm(folder.name, folder, points, Ledger(folder / "ledger.jsonl").by_kind(), phases)
    if (folder / "archive" / "archive.json").exists():
        archive = Archive(folder / "archive", info.config["domain"])
        arm.candidates = len(archive.candidates)
        arm.searched = last_rounds(archive.rounds)
        arm.steps = _accepted(archive)
    return arm


def _point(path: Path, index: int, line: bytes) -> Point:
    try:
        row = json.loads(line)
        (name,) = (key for key in row if key.startswith("mean@"))
        low, high = row["ci95"]
        point = row | {"mean": row[name], "low": low, "high": high, "k": int(name.removeprefix("mean@"))}
        return msgspec.convert(point, Point)
    except (ValueError, KeyError, TypeError, msgspec.ValidationError) as error:
        raise UserError(f"{path}:{index + 1} is no point of a curve: {error}") from None


def _accepted(archive: Archive) -> list[Step]:
    """The harnesses that were accepted, in order: the one that the first search started from, then each new one."""
    if not archive.candidates:
        return []
    first = archive.candidates[0]
    score = next((s.mean for s in first.scores.values()), None)
    steps = [Step(first.hash, "start", first.hypothesis, first.axes, score, archive.source(first.hash))]
    for done in archive.rounds:
        if done.accepted != steps[-1].hash:
            new, when = archive[done.accepted], f"{done.phase}, round {done.round}"
            source = archive.source(new.hash)
            steps.append(Step(new.hash, when, new.hypothesis, new.axes, done.accepted_mean, source))
    return steps


def between(a: dict[str, list[float]], b: dict[str, list[float]]) -> Estimate | None:
    """b minus a, paired by task; None where one of the tests is not on disk."""
    return paired_difference(a, b) if a and b else None
