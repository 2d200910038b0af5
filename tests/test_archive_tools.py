"""What a proposer's tools show of an archive, and that they show nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from agent_runs import DOMAIN, H0, SNIPPETS, played_archive, run_search
from hypothesis import given, settings
from hypothesis import strategies as st

from whale_train.meta_harness.archive import Archive
from whale_train.meta_harness.proposers.archive_tools import MAX_SHOWN, Desk, ToolInputError
from whale_train.meta_harness.proposers.base import Proposal
from whale_train.meta_harness.proposers.brief import system_prompt
from whale_train.meta_harness.proposers.scripted import ScriptedProposer
from whale_train.meta_harness.search import SearchSettings


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return played_archive(tmp_path_factory.mktemp("played"))


@pytest.fixture
def fenced(tmp_path: Path, played: Path) -> Path:
    """An archive among files that are no business of a proposer's, with links to them, and a secret."""
    root = tmp_path / "archive"
    root.mkdir()
    for path in played.rglob("*"):
        if path.is_file():
            copy = root / path.relative_to(played)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    (tmp_path / "secret.txt").write_text("SECRET = 1\n")
    (tmp_path / "archive-2").mkdir()
    (tmp_path / "archive-2" / "secret.txt").write_text("SECRET = 1\n")
    (root / "link.txt").symlink_to(tmp_path / "secret.txt")
    (root / "folder").symlink_to(tmp_path)
    (root / "circle").symlink_to(root / "circle")
    return root


OUTSIDE = [
    "../secret.txt", "/etc/passwd", "candidates/../../secret.txt", "link.txt", "folder/secret.txt", "folder", "..",
    "../archive-2/secret.txt", "circle", "a\0b", "x" * 5000, "~", "/proc/self/environ", "/dev/zero",
]  # fmt: skip


@pytest.mark.parametrize("tool", ["read", "grep"])
@pytest.mark.parametrize("path", OUTSIDE, ids=range(len(OUTSIDE)))
def test_nothing_outside_the_archive_is_read(fenced: Path, tool: str, path: str) -> None:
    desk = Desk(Archive(fenced, "search-qa"), 1, DOMAIN)
    with pytest.raises(ToolInputError):
        desk.use(tool, {"path": path} | ({"pattern": "SECRET"} if tool == "grep" else {}))


def test_links_are_neither_listed_nor_searched(fenced: Path) -> None:
    desk = Desk(Archive(fenced, "search-qa"), 1, DOMAIN)
    assert "SECRET" not in desk.use("grep", {"pattern": "SECRET"}).replace("no match", "")
    listed = desk.use("read", {"path": "."})
    assert f"candidates/{H0.hash}/harness.py" in listed
    assert not re.search("secret|link|circle", listed)


@given(st.text(alphabet="./acehinrstdp\\~\0 ", max_size=40))
@settings(max_examples=80)
def test_no_path_leads_outside(played: Path, path: str) -> None:
    desk = Desk(Archive(played, "search-qa"), 1, DOMAIN)
    try:
        found = desk.path(path)
    except ToolInputError:
        return
    assert found.is_relative_to(played.resolve())


def test_lines_and_ranges_and_what_is_long(fenced: Path) -> None:
    desk = Desk(Archive(fenced, "search-qa"), 1, DOMAIN)
    (fenced / "long.txt").write_bytes(b"first\n" + b"x" * 10_000 + b"\n\xff\xfe last\n")
    assert desk.use("read", {"path": "long.txt", "first": 1, "last": 1}) == "1\tfirst"
    assert "[cut: 6,000 more characters]" in desk.use("read", {"path": "long.txt", "first": 2, "last": 2})
    assert "last" in desk.use("read", {"path": "long.txt", "first": 3})
    assert "3 lines" in desk.use("read", {"path": "long.txt", "first": 4})
    (fenced / "many.txt").write_text("word\n" * 100_000)
    assert len(desk.use("read", {"path": "many.txt"})) < MAX_SHOWN + 100
    assert "only the first 60 matches" in desk.use("grep", {"pattern": "word", "path": "many.txt"})


def test_two_candidates_are_compared_task_by_task(tmp_path: Path) -> None:
    proposer = ScriptedProposer(Proposal(SNIPPETS, "The nearest sentences hold the answer.", (H0.hash,), ("view",)))
    config = SearchSettings(rounds=1, candidates=1, tasks=12, backoff=0, refills=0)
    archive = run_search(tmp_path, proposer, config)
    key, new = archive.phase.score_key, archive.rounds[0].tried[0].hash  # type: ignore[union-attr]
    ours, theirs = archive.outcomes(H0.hash, key), archive.outcomes(new, key)
    shown = Desk(archive, 1, DOMAIN).use("compare", {"first": H0.hash, "second": new})
    wins = [t for t in ours if ours[t].score > theirs[t].score]
    losses = [t for t in ours if ours[t].score < theirs[t].score]
    assert wins or losses
    assert re.findall(rf"^only {H0.hash}: (\S+)", shown, re.MULTILINE) == wins
    assert re.findall(rf"^only {new}: (\S+)", shown, re.MULTILINE) == losses
    assert "+        messages += [reply.message, tool" in shown


def test_a_hypothesis_stands_beside_what_came_of_it(tmp_path: Path) -> None:
    proposer = ScriptedProposer(
        Proposal(SNIPPETS, "The nearest sentences hold the answer.", (H0.hash,), ("view",)),
        Proposal("def run(\n", "Shorter is better.", (H0.hash,)),
    )
    archive = run_search(tmp_path, proposer, SearchSettings(rounds=1, candidates=2, tasks=12, backoff=0, refills=0))
    new, broken = (t.hash for t in archive.rounds[0].tried)
    key = str(archive.phase.score_key)  # type: ignore[union-attr]
    gain = archive[new].scores[key].mean - archive[H0.hash].scores[key].mean
    result = f"on 12 tasks, {archive[new].scores[key].turns:.1f} model calls, {gain:+.3f} against {H0.hash}"
    desk = Desk(archive, 1, DOMAIN)
    listed = desk.use("list_candidates", {}).split("\n")
    at = next(i for i, line in enumerate(listed) if line.startswith(new))
    assert result in listed[at] and listed[at + 1] == "    expected: The nearest sentences hold the answer."
    read = desk.use("read", {"path": f"candidates/{new}/hypothesis.md"})
    assert read.startswith("1\tThe nearest sentences") and result in read.split("[what came of it: ")[1]
    assert "does not parse" in desk.use("read", {"path": f"candidates/{broken}/hypothesis.md"})
    archive[new].scores[key] = msgspec.structs.replace(archive[new].scores[key], n=4, dropped=True)
    assert re.search(rf"{new}  .* on 4 tasks, [\d.]+ model calls, dropped from", desk.use("list_candidates", {}))
    assert f"against {H0.hash}" not in desk.use("list_candidates", {}), "means over other tasks are not compared"
    assert "each one beside its result" in system_prompt("search-qa")


def test_a_draft_is_played_on_recorded_replies_and_shows_no_verdict(played: Path) -> None:
    archive = Archive(played, "search-qa")
    desk, episodes = Desk(archive, 1, DOMAIN), [e for e in archive.episodes(H0.hash) if e.tool_calls][:2]
    tasks = [e.task_id for e in episodes]
    before = {p: p.read_bytes() for p in played.rglob("*") if p.is_file()}

    def draft(source: str) -> list[str]:
        return desk.use("try_draft", {"source": source, "candidate": H0.hash, "tasks": tasks}).split("\n\ntask ")

    for shown, recorded in zip(draft(H0.source), episodes, strict=True):
        calls = len(recorded.calls)
        assert f"it returns {recorded.answer!r}, after {calls} model calls, of {calls} recorded; it asks as" in shown
        assert "· score" not in shown and all(c.reply.text in shown for c in recorded.calls)
        assert "search(" in shown and "-> [" in shown
    assert all("from call 2 on, it asks something else" in shown for shown in draft(SNIPPETS))
    assert all("from call 1 on" in shown for shown in draft(H0.source.replace("Question:", "The question:")))
    failing = H0.source.replace("        query = tag", "        1 / 0\n        query = tag")
    assert all("ZeroDivisionError" in shown for shown in draft(failing))
    assert before == {p: p.read_bytes() for p in played.rglob("*") if p.is_file()}
