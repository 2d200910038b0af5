"""The archive: whole or not there whenever the process dies, scores side by side, readable without this program."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import zstandard

from whale_envs import Episode, UserError, Verdict
from whale_envs.harness.audit import Finding
from whale_train.meta_harness import archive as archive_module
from whale_train.meta_harness.archive import Archive, tree_hash
from whale_train.meta_harness.records import Phase, Round, Score, ScoreKey
from whale_train.rollout import episode_seed

pytestmark = pytest.mark.usefixtures("no_fsync")

SOURCE = '''"""One turn."""
TURNS = 1


def run(task, tools):
    reply = yield [{"role": "user", "content": "?"}]
    return reply.text
'''
KEY = ScoreKey("w1", "d1", 7)


def episodes(key: ScoreKey, *scores: float) -> list[Episode]:
    return [
        Episode(f"t{i}", "math", "h", episode_seed(key.seed, f"t{i}", 0), key.weights, verdict=Verdict(s, "because"))
        for i, s in enumerate(scores)
    ]


def score(mean: float, turns: float = 1.0) -> Score:
    return Score(mean, 0.1, 2, turns, f"unit {mean}")


def fill(folder: Path) -> Archive:
    """An archive with two candidates, a score under old weights, one under new ones, and a round."""
    archive = Archive(folder, "math")
    first = archive.add(SOURCE, "The start.", (), (), "start")
    archive.begin(Phase("search", KEY), first.hash)
    archive.record(first.hash, KEY, score(0.5), episodes(KEY, 0.0, 1.0))
    second = archive.add(SOURCE.replace("1", "2"), "Two turns.", (first.hash,), ("TURNS up",), "candidate 1")
    archive.record(second.hash, KEY, score(1.0), episodes(KEY, 1.0, 1.0))
    later = ScoreKey("w2", "d1", 7)
    archive.record(second.hash, later, score(0.0), episodes(later, 0.0, 0.0))
    if not archive.rounds:
        archive.finish_round(Round("search", 1, [], second.hash, 1.0))
    return archive


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_reopened_archive_is_the_same(tmp_path: Path) -> None:
    archive, again = fill(tmp_path), Archive(tmp_path, "math")
    assert again.candidates == archive.candidates
    assert (again.accepted, again.phase, again.rounds) == (archive.accepted, archive.phase, archive.rounds)


def test_scores_and_episodes_under_other_weights_stand_side_by_side(tmp_path: Path) -> None:
    archive = fill(tmp_path)
    second = archive.candidates[1]
    assert {k: s.mean for k, s in second.scores.items()} == {"w1-d1-7": 1.0, "w2-d1-7": 0.0}
    assert len(archive.episodes(second.hash)) == 4
    assert [e.score for e in archive.episodes(second.hash, KEY)] == [1.0, 1.0]
    assert {t: o.score for t, o in archive.outcomes(second.hash, ScoreKey("w2", "d1", 7)).items()} == {
        "t0": 0.0,
        "t1": 0.0,
    }
    assert [c.hash for c in archive.scored(KEY)] == [second.hash, archive.candidates[0].hash]
    assert [c.hash for c in archive.scored(ScoreKey("w2", "d1", 7))] == [second.hash]


def test_ties_go_to_fewer_turns(tmp_path: Path) -> None:
    archive = fill(tmp_path)
    archive.record(archive.candidates[0].hash, KEY, score(1.0, turns=0.5), [])
    assert archive.scored(KEY)[0] is archive.candidates[0]


def test_a_person_can_read_it(tmp_path: Path) -> None:
    archive = fill(tmp_path)
    folder = tmp_path / "candidates" / archive.candidates[1].hash
    assert (folder / "hypothesis.md").read_text() == "Two turns.\n"
    assert json.loads((folder / "parents.json").read_text())["parents"] == [archive.candidates[0].hash]
    assert json.loads((folder / "scores.json").read_text())["w1-d1-7"]["mean"] == 1.0
    lines = zstandard.decompress((folder / "episodes.jsonl.zst").read_bytes()).splitlines()
    assert [json.loads(line)["task_id"] for line in lines] == ["t0", "t1", "t0", "t1"]


def test_killed_at_any_write_and_filled_again_it_is_as_if_never_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = files(fill(tmp_path / "undisturbed").folder)
    write = archive_module.write_atomic
    for fatal in range(0, 60, 3):
        left = fatal

        def dying(path: Path, data: bytes) -> None:
            nonlocal left
            if left == 0:
                raise KeyboardInterrupt
            left -= 1
            write(path, data)

        folder = tmp_path / f"killed-{fatal}"
        monkeypatch.setattr(archive_module, "write_atomic", dying)
        try:
            fill(folder)
            break
        except KeyboardInterrupt:
            monkeypatch.setattr(archive_module, "write_atomic", write)
            assert files(fill(folder).folder) == wanted
    else:
        pytest.fail("the archive was never written whole")
    assert fatal > 10


def test_a_program_is_the_same_whatever_its_layout_comments_and_docstrings() -> None:
    other = SOURCE.replace("tools):\n", 'tools):\n    """Runs."""\n').replace("TURNS = 1", "TURNS = (1)  # one")
    assert other != SOURCE
    assert tree_hash(other) == tree_hash(SOURCE)
    assert tree_hash(SOURCE.replace("TURNS = 1", "TURNS = 2")) != tree_hash(SOURCE)
    assert tree_hash("def run(") != tree_hash("def run((")


def test_what_is_no_archive_of_this_domain_is_refused_in_one_line(tmp_path: Path) -> None:
    fill(tmp_path)
    with pytest.raises(UserError, match="holds harnesses of math, not of chess"):
        Archive(tmp_path, "chess")
    (tmp_path / "archive.json").write_text("{}")
    with pytest.raises(UserError, match=r"archive\.json is damaged"):
        Archive(tmp_path, "math")
    with pytest.raises(UserError, match="no harness"):
        Archive(tmp_path / "new", "math")["abc"]


def test_the_same_episodes_are_the_same_bytes_and_a_damaged_file_is_said(tmp_path: Path) -> None:
    one, other = (fill(tmp_path / name) for name in ("one", "other"))
    assert files(one.folder) == files(other.folder)
    path = one.files(one.candidates[0].hash) / "episodes.jsonl.zst"
    whole = path.read_bytes()
    for damaged in (whole[:-5], whole[: len(whole) // 2], b"", whole + b"x", b"{}" + whole, bytes(len(whole))):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"episodes\.jsonl\.zst is damaged"):
            one.episodes(one.candidates[0].hash)


def test_the_frontier_is_who_solves_what_the_best_does_not_the_most_useful_first(tmp_path: Path) -> None:
    archive = Archive(tmp_path, "math")
    solve = {"best": (1, 1, 1, 0, 0, 0, 0), "two": (0, 0, 0, 1, 1, 0, 0), "same two": (1, 0, 0, 1, 1, 0, 0),
             "one": (0, 0, 0, 0, 1, 1, 0), "none": (1, 1, 0, 0, 0, 0, 0), "refused": (0, 0, 0, 0, 0, 0, 1)}  # fmt: skip
    made = {}
    for number, (name, scores) in enumerate(solve.items()):
        made[name] = archive.add(SOURCE.replace("1", str(number + 1)), name, (), (), "x").hash
        archive.record(made[name], KEY, score(sum(scores) / 7), episodes(KEY, *scores))
    archive.refuse(made["refused"], [Finding("static", "no")])
    assert archive.frontier() == {}, "no search has begun"
    archive.begin(Phase("search", KEY), made["best"])
    assert archive.frontier() == {made["two"]: ["t3", "t4"], made["one"]: ["t5"]}
    archive.finish_round(Round("search", 1, [], made["best"], 3 / 7))
    assert json.loads((tmp_path / "frontier.json").read_text()) == archive.frontier()
    other = ScoreKey("w2", "d1", 7)
    archive.record(made["two"], other, score(0.1), [])
    archive.begin(Phase("search 2", other), made["two"])
    assert archive.frontier() == {}
