"""Proposers by name: the scripted one, those from outside, and that a mistake in either is one line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from agent_runs import DOMAIN, H0, SNIPPETS, TURNS, run_search
from mistakes import one_line

from whale_envs import UserError
from whale_train.arguments import parse
from whale_train.meta_harness.archive import Archive
from whale_train.meta_harness.proposers import load_proposer
from whale_train.meta_harness.proposers.agent import AgentProposer, Limits
from whale_train.meta_harness.proposers.base import Cost, Proposal, ProposerError
from whale_train.meta_harness.proposers.outside import OutsideProposer
from whale_train.meta_harness.proposers.scripted import ScriptedProposer
from whale_train.meta_harness.search import SearchSettings
from whale_train.options import SearchOptions

CONFIG = SearchSettings(rounds=2, candidates=1, tasks=4, refills=1, retries=0, backoff=0)
POLITE = H0.source.replace("Question:", "The question, please:")


class Mine:
    """A proposer as somebody else may write one, who has read `Proposer` and nothing else."""

    name = "mine"
    cost = Cost(dollars=0.5, sampled_tokens=7)
    exchanges: Sequence[str] = ()

    def propose(self, archive: Archive, count: int, seed: int) -> list[Proposal]:
        parent = archive.accepted
        return [Proposal(POLITE, "Politeness helps.", (parent,), ("tone",))][:count]


class HalfDone:
    name = "half done"


class Mute(Mine):
    exchanges = None  # type: ignore[assignment]


def broken() -> Mine:
    raise RuntimeError("no\nmemory")


NO_CLASS = 7


def test_files_are_handed_in_in_order_and_each_once(tmp_path: Path) -> None:
    for name, source in (("a", SNIPPETS), ("b", "# As a.\n" + SNIPPETS), ("c", "def run(\n"), ("d", TURNS)):
        (tmp_path / f"{name}.py").write_text(source)
    spec = "scripted:" + ",".join(str(tmp_path / f"{name}.py") for name in "abcd")
    archive = run_search(tmp_path, load_proposer(spec, DOMAIN), CONFIG)
    tried = [t for r in archive.rounds for t in r.tried]
    assert [archive.source(t.hash) for t in tried] == [SNIPPETS, "def run(\n", TURNS], "b is a; c costs its gate"
    assert [bool(t.gate) for t in tried] == [False, True, False]
    again = load_proposer(spec, DOMAIN)  # as after a kill: what is on file is not handed in again
    assert again.propose(archive, 3, 0) == []


def test_a_scripted_failure_is_raised_once_and_after_what_came_before_it(tmp_path: Path) -> None:
    one, two = Proposal(SNIPPETS, "One."), Proposal(TURNS, "Two.")
    down, archive = ProposerError("down"), Archive(tmp_path, "search-qa")
    proposer = ScriptedProposer(one, down, two)
    assert proposer.propose(archive, 2, 0) == [one]
    archive.add(one.source, one.hypothesis, (), (), "candidate 1")
    with pytest.raises(ProposerError, match="down"):
        proposer.propose(archive, 2, 0)
    assert proposer.propose(archive, 2, 0) == [two]


def test_one_from_outside_plugs_in_by_module_and_attribute(tmp_path: Path) -> None:
    proposer = load_proposer("test_proposers:Mine", DOMAIN)
    archive = run_search(tmp_path, proposer, CONFIG)
    assert archive.source(archive.rounds[0].tried[0].hash) == POLITE
    assert archive.rounds[1].tried == archive.rounds[1].tried[:2] and all(t.gate for t in archive.rounds[1].tried)


class Clumsy(Mine):
    """Fails in its own way the first time, and hands in what is no proposal the second."""

    def propose(self, archive: Archive, count: int, seed: int) -> list[Proposal]:
        self.times = getattr(self, "times", 0) + 1
        if self.times == 1:
            raise KeyError("nothing there")
        return [17] if self.times == 2 else super().propose(archive, count, seed)  # type: ignore[list-item]


def test_what_goes_wrong_in_one_from_outside_is_a_failure_after_which_it_is_asked_again(tmp_path: Path) -> None:
    proposer = load_proposer("test_proposers:Clumsy", DOMAIN)
    archive = Archive(tmp_path, DOMAIN.name)
    with pytest.raises(ProposerError, match="KeyError: 'nothing there'"):
        proposer.propose(archive, 1, 0)
    with pytest.raises(ProposerError, match="it handed in 17: expected"):
        proposer.propose(archive, 1, 0)
    assert [p.source for p in proposer.propose(archive, 1, 0)] == [POLITE]


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("source", 7, "Expected `str`, got `int` - at `$.source`"),
        ("source", b"def run", "Expected `str`, got `bytes`"),
        ("source", POLITE + "# \udcff", "surrogates not allowed"),
        ("hypothesis", None, "Expected `str`, got `null`"),
        ("hypothesis", "\udcff", "surrogates not allowed"),
        ("parents", H0.hash, "Expected `array`, got `str`"),
        ("parents", (H0.hash, 7), "Expected `str`, got `int` - at `$.parents[1]`"),
        ("axes", (None,), "Expected `str`, got `null`"),
    ],
)
def test_a_proposal_with_a_field_that_no_archive_could_hold_is_not_filed(
    tmp_path: Path, field: str, value: object, says: str
) -> None:
    class Wrong(Mine):
        def propose(self, archive: Archive, count: int, seed: int) -> list[Proposal]:
            return [msgspec.structs.replace(p, **{field: value}) for p in super().propose(archive, count, seed)]

    archive = Archive(tmp_path, DOMAIN.name)
    with pytest.raises(ProposerError, match=re.escape(says)):
        OutsideProposer(Wrong()).propose(archive, 1, 0)
    assert OutsideProposer(Mine()).propose(archive, 1, 0) == Mine().propose(archive, 1, 0)


def test_the_caps_of_a_conversation_come_from_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-test")
    argv = [
        "--proposer",
        "anthropic",
        "--proposer-dollars",
        "0.5",
        "--proposer-tokens",
        "900",
        "--proposer-minutes",
        "3",
    ]
    for command in ("search", "run"):
        given, usual = parse([command, *argv]), parse([command])
        assert isinstance(given, SearchOptions) and isinstance(usual, SearchOptions)
        proposer = load_proposer(given.proposer, DOMAIN, given.limits)
        assert isinstance(proposer, AgentProposer)
        assert proposer.limits == Limits(dollars=0.5, tokens=900, minutes=3)
        assert usual.limits == Limits()
    for wrong in ("--proposer-dollars", "--proposer-tokens", "--proposer-minutes"):
        with pytest.raises(UserError, match=f"{wrong} 0: expected more than 0"):
            parse(["search", wrong, "0"])


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("test_proposers:Nobody", "has no attribute 'Nobody'"),
        ("no_such_package.mine:Proposer", "No module named 'no_such_package'"),
        ("test_proposers:", "cannot make proposer"),
        (":Mine", "cannot make proposer"),
        ("test_proposers:NO_CLASS", "'int' object is not callable"),
        ("test_proposers:broken", "RuntimeError: no memory"),
        ("test_proposers:HalfDone", "lacks cost, exchanges, propose"),
        ("test_proposers:Mute", "exchanges that are no list"),
        ("mutation:fast", "No module named 'mutation'"),
        ("scripted", "expected scripted:FILE.py"),
        ("scripted:,", "expected scripted:FILE.py"),
        ("scripted:nowhere.py", "cannot read nowhere.py (No such file or directory)"),
        ("scripted:.", "cannot read . (Is a directory)"),
        ("scripted:binary.py", "it is no text in UTF-8"),
        ("mutatoin", "did you mean 'mutation'"),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_begun(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, spec: str, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe")
    assert expected in one_line(capsys, "search", "--proposer", spec)
    assert [p.name for p in tmp_path.iterdir()] == ["binary.py"]
