"""Old harnesses under new weights: the best of them play again once, are paid for, and may be accepted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from search_runs import files, rewording, run

from whale_envs import Domain, Harness, UserError
from whale_envs.domains import load_domain
from whale_train.arguments import parse
from whale_train.config import RunConfig
from whale_train.ledger import Ledger
from whale_train.meta_harness import archive as archive_module
from whale_train.meta_harness.archive import Archive
from whale_train.meta_harness.evaluate import split_tasks
from whale_train.meta_harness.proposers.scripted import ScriptedProposer
from whale_train.meta_harness.search import SearchSettings
from whale_train.policies.base import Request
from whale_train.policies.scripted import ScriptedPolicy
from whale_train.whale import costs, plan_of

pytestmark = pytest.mark.usefixtures("no_fsync")

CONFIG = SearchSettings(rounds=1, candidates=3, tasks=12, refills=0, backoff=0)
ONE, TWO, THREE = rewording("One"), rewording("Two"), rewording("Three")


@pytest.fixture(scope="module")
def domain() -> Domain:
    return load_domain("search-qa")


def policy(domain: Domain, name: str, **quarters: int) -> ScriptedPolicy:
    """Answers so many quarters of the tasks right under the harness that begins with a word, none under others."""
    tasks, _ = split_tasks(domain.splits.harness, CONFIG.shadow, CONFIG.tasks)
    known = {t.shown["question"]: (place, t.gold[0]) for place, t in enumerate(tasks)}

    def answer(request: Request) -> str:
        shown = request.ask.messages[1]["content"]
        place, gold = known.get(shown.partition("uestion: ")[2].partition("\n")[0], (0, "x"))
        return f"<answer>{gold if quarters.get(shown.partition(' ')[0], 0) > place % 4 else 'nobody'}</answer>"

    return ScriptedPolicy(answer, name)


def two_phases(domain: Domain, folder: Path, rescore: int) -> tuple[Harness, Archive, Ledger]:
    """A phase in which THREE is best, then one under weights for which TWO is."""
    old, new = policy(domain, "old", One=1, Two=2, Three=3), policy(domain, "new", Three=1, Two=4)
    first, _, _ = run(domain, folder, ScriptedProposer(ONE, TWO, THREE), CONFIG, old, "one")
    config = replace(CONFIG, rescore=rescore)
    last, _, _ = run(domain, folder, ScriptedProposer(), config, new, "two", first)
    return last, Archive(folder / "archive", "search-qa"), Ledger(folder / "ledger.jsonl")


def test_the_best_old_ones_play_again_and_may_be_accepted(domain: Domain, tmp_path: Path) -> None:
    last, archive, ledger = two_phases(domain, tmp_path, rescore=1)
    assert last.hash == Harness(TWO.source).hash
    assert archive.phase is not None
    again = [c.hash for c in archive.candidates if str(archive.phase.score_key) in c.scores]
    assert again == [Harness(TWO.source).hash, Harness(THREE.source).hash], "THREE is the baseline"
    assert ledger.rollouts() == (4 + 2) * CONFIG.tasks and "two rescore 1" in ledger.lines


def test_without_it_nothing_old_is_played(domain: Domain, tmp_path: Path) -> None:
    last, _, ledger = two_phases(domain, tmp_path, rescore=0)
    assert last.hash == Harness(THREE.source).hash and ledger.rollouts() == (4 + 1) * CONFIG.tasks


def test_more_than_there_are_is_all_there_are_but_the_baseline(domain: Domain, tmp_path: Path) -> None:
    _, _, ledger = two_phases(domain, tmp_path, rescore=10)
    assert ledger.rollouts() == (4 + 4) * CONFIG.tasks


class Killed(BaseException):
    """What a kill looks like from within."""


def test_killed_while_old_ones_play_it_goes_on_with_the_same_ones(
    domain: Domain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_phases(domain, tmp_path / "undisturbed", 2)
    write = archive_module.write_atomic

    def dying(path: Path, data: bytes) -> None:
        write(path, data)
        if path.parent.name == Harness(TWO.source).hash and b'"unit": "two rescore 1"' in data:
            raise Killed

    monkeypatch.setattr(archive_module, "write_atomic", dying)
    with pytest.raises(Killed):
        two_phases(domain, tmp_path / "killed", 2)
    monkeypatch.setattr(archive_module, "write_atomic", write)
    two_phases(domain, tmp_path / "killed", 2)
    assert files(tmp_path / "killed") == files(tmp_path / "undisturbed")


def test_a_run_plans_for_it_in_every_arm(domain: Domain) -> None:
    config = RunConfig(rescore=2, cycles=3)
    cost = costs(config, domain)
    assert cost.rescore == 2 * config.tasks
    planned = {arm: plan_of(config, arm, domain).rollouts() for arm in config.arms}
    plain = RunConfig(cycles=3)
    before = plan_of(plain, "whale", domain).rollouts()
    assert planned["whale"] == before + 2 * cost.rescore, "there is nothing old in the first cycle"
    assert max(planned.values()) - min(planned.values()) <= max(cost.step, cost.round) / 2


def test_the_command_line_takes_it_and_says_what_is_wrong() -> None:
    assert parse(["run", "--rescore", "3"]).search.rescore == 3  # type: ignore[union-attr]
    with pytest.raises(UserError, match="--rescore -1: expected 0 to"):
        parse(["run", "--rescore", "-1"])
    with pytest.raises(UserError, match="rescore"):
        parse(["search", "--rescore", "1"])
