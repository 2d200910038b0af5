"""Looking at a search: everything that was tried is shown, nothing is changed, and mistakes say what to do."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import msgspec
import pytest
from fake_run import make_run

from whale_envs import load_domain, load_harness
from whale_train import cli
from whale_train.meta_harness.archive import Archive
from whale_train.meta_harness.evaluate import evaluate, split_tasks
from whale_train.meta_harness.optimism import estimated_optimism
from whale_train.meta_harness.records import Candidate, Outcome, Phase, Round, Score, ScoreKey
from whale_train.policies.scripted import ScriptedPolicy
from whale_train.progress import Silent


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "run", tasks=2)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Archive:
    """Two harnesses that have played the same 6 tasks, with a policy that answers by what it is shown first."""
    domain = load_domain("search-qa")
    tasks, _ = split_tasks(domain.splits.harness, 0.25, 6)
    golds = {t.shown["question"]: t.gold[0] for t in tasks}

    def answer(request: object) -> str:
        shown = "\n".join(m["content"] for m in request.ask.messages)  # type: ignore[attr-defined]
        number = next(i for i, question in enumerate(golds) if question in shown)
        right = number < 2 or (number < 5 and "passages" in shown)
        return f"<answer>{list(golds.values())[number] if right else 'nobody'}</answer>"

    archive = Archive(tmp_path_factory.mktemp("archive"), "search-qa")
    source = load_harness("h0", "search-qa").source
    policy, key = ScriptedPolicy(answer), ScoreKey("w", tasks.hash, 0)
    sources = (source, source.replace("Answer factual", "Read the passages. Answer factual"))
    for text, parents in zip(sources, ([], [load_harness("h0", "search-qa").hash]), strict=True):
        made = archive.add(text, "It\nhelps.", parents, (), "born")
        archive.begin(Phase("phase", key), made.hash)
        score, episodes = evaluate(policy, domain, archive.harness(made.hash), tasks, 0, "unit", Silent())
        archive.record(made.hash, key, score, episodes)
    return archive


def said(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    assert cli.main([str(a) for a in args]) == 0
    return capsys.readouterr().out


def test_every_harness_of_every_arm_is_in_the_tree(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    out = said(capsys, "archive", run)
    for arm in ("whale", "harness-only"):
        archive = Archive(run / "arms" / arm / "archive", "search-qa")
        assert str(archive.folder) in out
        for candidate in archive.candidates:
            lines = [line for line in out.splitlines() if candidate.hash in line and "harnesses," not in line]
            assert lines and all(f"{100 * s.mean:.1f} ±" in lines[0] for s in candidate.scores.values())
    assert "<twice> the words" in out and "accepted" in out
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before
    one = run / "arms" / "whale"
    assert said(capsys, "archive", one) == said(capsys, "archive", one / "archive"), "an arm's folder does, too"


def test_of_several_arms_the_one_that_scored_both_is_compared(
    played: Archive, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    a, b = played.candidates
    shutil.copytree(played.folder, tmp_path / "run" / "arms" / "whale" / "archive")
    refused = Archive(tmp_path / "run" / "arms" / "harness-only" / "archive", "search-qa")
    for candidate in (a, b):
        refused.add(played.source(candidate.hash), "The same.", (), (), "r1")
    assert "3 won, 0 lost" in said(capsys, "diff", tmp_path / "run", a.hash, b.hash)


def test_a_comparison_shows_the_change_and_the_tasks_that_it_wins(
    played: Archive, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = played.candidates
    out = said(capsys, "diff", played.folder, a.hash, b.hash[:6])
    assert "+SYSTEM = " in out and "Read the passages." in out
    assert "3 won, 0 lost (sign test p = 0.125)" in out
    won = [line.split()[1] if line.split()[0] == "won" else "" for line in out.splitlines() if f"{b.hash}/" in line]
    tasks = played.outcomes(b.hash, played.phase.score_key)  # type: ignore[union-attr]
    assert len(won) == 3
    listed = said(capsys, "archive", played.folder)
    assert f"frontier: {a.hash}" not in listed, "it solves nothing that the best does not"
    back = said(capsys, "diff", played.folder, b.hash, a.hash)
    assert "0 won, 3 lost" in back
    shown = said(capsys, "episode", played.folder, f"{b.hash}/{list(tasks)[2]}")
    assert shown.count("[user]") == 1 and "score 1" in shown
    both = said(capsys, "episode", played.folder, list(tasks)[2])
    assert both.count("[user]") == 2 and "score 0" in both


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("archive", "nowhere"), "no folder nowhere"),
        (("archive", "."), "has no archive of harnesses"),
        (("diff", "{run}", "zz", "yy"), "no archive has one harness 'zz' and one 'yy'"),
        (("diff", "{run}", "", ""), "`whale archive` lists them"),
        (("episode", "{run}", "nothing/here"), "no episode 'nothing/here'"),
    ],
)
def test_a_mistake_is_one_line(
    args: tuple[str, ...],
    says: str,
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main([a.format(run=run) for a in args]) == 2
    err = capsys.readouterr().err
    assert says in err and len(err.splitlines()) == 1


def test_a_broken_archive_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "archive.json").write_text("{")
    assert cli.main(["archive", str(tmp_path)]) == 2
    assert "archive.json is damaged" in capsys.readouterr().err


def spoil(archive: Path, hash: str, how: str) -> None:
    """Damage an archive in one way."""
    index, files = archive / "archive.json", archive / "candidates" / hash
    candidates = json.loads(index.read_bytes())
    if how == "a score under no key":
        index.write_text(index.read_text().replace('"w-', '"x'))
    elif how == "a folder for an index":
        index.unlink()
        index.mkdir()
    elif how == "a circle":
        for candidate in candidates["candidates"]:
            candidate["parents"] = [next(c["hash"] for c in candidates["candidates"] if c is not candidate)]
        index.write_text(json.dumps(candidates))
    elif how == "no candidates":
        index.write_text('{"domain":"search-qa"}')
    elif how == "no outcomes":
        (files / "outcomes.jsonl").write_bytes(b"")
    elif how == "no source":
        (files / "harness.py").unlink()
    elif how == "a source in no encoding":
        (files / "harness.py").write_bytes(b"\xff\xfe\x00junk")


@pytest.mark.parametrize(
    ("how", "command", "code", "says"),
    [
        ("a score under no key", "archive", 2, "expected WEIGHTS-DATA-SEED"),
        ("a folder for an index", "archive", 2, "archive.json is damaged (Is a directory): put back a copy of it"),
        ("a circle", "archive", 0, "2 harnesses, 0 refused"),
        ("no candidates", "archive", 0, "0 harnesses"),
        ("no candidates", "diff", 2, "no archive has one harness"),
        ("no outcomes", "diff", 0, "outcomes are missing"),
        ("no source", "diff", 2, "harness.py cannot be read (No such file or directory)"),
        ("a source in no encoding", "diff", 2, "harness.py cannot be read ('utf-8' codec"),
    ],
)
def test_a_damaged_archive_is_shown_as_far_as_it_goes_or_said_in_one_line(
    how: str, command: str, code: int, says: str, played: Archive, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(played.folder, tmp_path / "spoilt")
    a, b = (c.hash for c in played.candidates)
    spoil(tmp_path / "spoilt", b, how)
    assert cli.main([command, str(tmp_path / "spoilt"), *([a, b] if command == "diff" else [])]) == code
    out, err = capsys.readouterr()
    assert says in " ".join((err or out).split()) and len(err.splitlines()) == (code != 0)
    if how == "a circle":
        assert all(h in out for h in (a, b))


def test_what_a_harness_cost_stands_in_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive, key = Archive(tmp_path, "search-qa"), ScoreKey("w", "d", 0)
    made = archive.add(load_harness("h0", "search-qa").source, "Costs.", (), (), "born")
    archive.record(made.hash, key, Score(0.5, 0.1, 9, 2.0, "u", 1_234_000, 1_000, dollars=0.256), [])
    assert "of 9, 2.0 turns, 1,235k tokens, $0.26 · Costs." in said(capsys, "archive", tmp_path)


def test_two_harnesses_that_solve_the_same_are_said_to(played: Archive, capsys: pytest.CaptureFixture[str]) -> None:
    hash = played.candidates[0].hash
    assert f"{hash} 33.3 %, {hash} 33.3 % on 6 tasks: no task differs" in said(
        capsys, "diff", played.folder, hash, hash
    )


def test_a_draft_that_a_search_is_writing_stays_when_somebody_looks(played: Archive) -> None:
    draft = played.folder / ".archive.json.tmp"
    draft.write_text("half")
    assert cli.main(["archive", str(played.folder)]) == 0
    assert draft.exists()
    Archive(played.folder, "search-qa").begin(played.phase, played.accepted)  # type: ignore[arg-type]
    assert not draft.exists()


def test_a_thousand_harnesses_are_listed_gone_on_with_and_shown_soon(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive, key = Archive(tmp_path / "a", "search-qa"), ScoreKey("w", "d", 0)
    for number in range(1000):  # a long line of descent, seven children each
        parents = [f"{number // 7 * 7 - 7:012x}"] if number > 6 else []
        score = {str(key): Score(number / 1000, 0.01, 100, 2.0, "unit")}
        name = f"{number:012x}"
        archive.candidates.append(Candidate(name, name, f"Number {number}.", parents, [], "born", "", score))
        outcomes = [Outcome(str(key), f"t{i}", float(i * number % 1000 < number), "", 2) for i in range(128)]
        archive.files(name).mkdir(parents=True)
        (archive.files(name) / "outcomes.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, outcomes)))
    archive.begin(Phase("phase", key), "0" * 12)
    began = time.process_time()
    again = Archive(tmp_path / "a", "search-qa")
    assert len(again.scored()) == 1000
    again.begin(Phase("phase", key), again.accepted)
    again.finish_round(Round("phase", 1, [], again.accepted, 0.0, optimism=estimated_optimism(again, key)))
    out = said(capsys, "archive", tmp_path / "a")
    assert sum("Number" in line for line in out.splitlines()) == 1000
    assert time.process_time() - began < 20  # 1.5 s on an idle core
