"""Acceptance: the highest mean, or evidence that fresh seeds confirm; whatever was played is paid once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from search_runs import H0, SEED, files, rewording, run

from whale_envs import Domain, Harness, UserError
from whale_envs.domains import load_domain
from whale_train import config
from whale_train.archive_commands import show_archive
from whale_train.arguments import parse
from whale_train.ledger import Ledger
from whale_train.meta_harness import archive as archive_module
from whale_train.meta_harness.acceptance import choose, fresh, sign_test
from whale_train.meta_harness.archive import Archive
from whale_train.meta_harness.evaluate import split_tasks
from whale_train.meta_harness.proposers.base import Proposal
from whale_train.meta_harness.proposers.scripted import ScriptedProposer
from whale_train.meta_harness.records import Outcome, Phase, Score, ScoreKey
from whale_train.meta_harness.search import SearchSettings
from whale_train.policies.base import Request
from whale_train.policies.scripted import ScriptedPolicy
from whale_train.rollout import episode_seed
from whale_train.whale import plan_of

pytestmark = pytest.mark.usefixtures("no_fsync")

CONFIG = SearchSettings(rounds=2, candidates=2, tasks=12, refills=0, backoff=0, acceptance="paired")


@pytest.fixture(scope="module")
def domain() -> Domain:
    return load_domain("search-qa")


def outcomes(*scores: float) -> dict[str, Outcome]:
    return {f"t{i}": Outcome("k", f"t{i}", s, "", 1) for i, s in enumerate(scores)}


def test_the_sign_test_is_the_binomial_tail() -> None:
    assert sign_test(outcomes(1, 1, 1, 1, 1), outcomes(0, 0, 0, 0, 0)) == 1 / 32
    assert sign_test(outcomes(1, 0, 1), outcomes(0, 1, 1)) == 0.75
    assert sign_test(outcomes(1, 1), outcomes(1, 1)) == 1
    assert sign_test(outcomes(0, 0), outcomes(1, 1)) == 1


def test_best_takes_the_highest_mean_and_paired_asks_for_evidence(tmp_path: Path) -> None:
    archive, key = Archive(tmp_path, "search-qa"), ScoreKey("w", "d", 0)
    old = archive.add(H0.source, "", (), (), "start")
    new = archive.add(H0.source.replace("TURNS = 3", "TURNS = 4"), "", (), (), "candidate")
    archive.begin(Phase("search", key), old.hash)
    archive.record(old.hash, key, Score(0.50, 0.1, 4, 2.0, "u"), [])
    archive.record(new.hash, key, Score(0.75, 0.1, 4, 2.0, "v"), [])
    assert choose(archive, key, old.hash) == new.hash
    assert choose(archive, key, old.hash, level=0.1) == old.hash
    archive.record(new.hash, key, Score(0.50, 0.1, 4, 2.0, "v"), [])
    assert choose(archive, key, old.hash) == old.hash, "a tie leaves the accepted one"
    archive.record(new.hash, key, Score(0.50, 0.1, 4, 1.5, "v"), [])
    assert choose(archive, key, old.hash) == new.hash, "but for fewer turns"


LUCKY, GOOD, BETTER = rewording("Lucky"), rewording("Good"), rewording("Better")


def policy(domain: Domain) -> ScriptedPolicy:
    """Knows a third of the answers; under GOOD two thirds and under BETTER nearly all; under LUCKY all, but only with
    the search's own seeds."""
    tasks, _ = split_tasks(domain.splits.harness, CONFIG.shadow, CONFIG.tasks)
    known = {t.shown["question"]: (place, t) for place, t in enumerate(tasks)}

    def answer(request: Request) -> str:
        shown = request.ask.messages[1]["content"]
        question = shown.partition("uestion: ")[2].partition("\n")[0]
        if question not in known:  # the null model's tasks are others
            return "I do not know."
        place, task = known[question]
        right = place % 3 == 0
        right |= shown.startswith("Good") and place % 3 == 1
        right |= shown.startswith("Better") and place != 2
        right |= shown.startswith("Lucky") and request.seed == episode_seed(SEED, task.id, 0)
        return f"<answer>{task.gold[0] if right else 'nobody'}</answer>"

    return ScriptedPolicy(answer, "policy")


def paired(domain: Domain, folder: Path, *proposals: Proposal) -> tuple[Harness, Archive, list[str]]:
    accepted, _, told = run(domain, folder, ScriptedProposer(*proposals), CONFIG, policy(domain))
    return accepted, Archive(folder / "archive", "search-qa"), told.lines


def test_luck_under_the_searchs_seeds_is_accepted_by_best_and_not_by_paired(domain: Domain, tmp_path: Path) -> None:
    best, _, _ = run(
        domain, tmp_path / "best", ScriptedProposer(LUCKY), SearchSettings(1, 1, 12, refills=0), policy(domain)
    )
    assert best.hash == Harness(LUCKY.source).hash
    accepted, archive, said = paired(domain, tmp_path / "paired", LUCKY)
    assert accepted.hash == H0.hash
    assert any("not confirmed under fresh seeds" in line for line in said)
    key = archive.phase.score_key  # type: ignore[union-attr]
    lucky = archive[Harness(LUCKY.source).hash]
    assert lucky.scores[str(key)].mean == 1 and lucky.scores[str(fresh(key))].mean < 0.5
    assert lucky in archive.scored(), "it was not refused: it may be a parent"
    assert Ledger(tmp_path / "paired" / "ledger.jsonl").rollouts() == 4 * CONFIG.tasks, "two harnesses, two seeds, once"


def test_what_is_better_is_confirmed_and_a_round_pays_for_one_rival(
    domain: Domain, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    accepted, archive, said = paired(domain, tmp_path, LUCKY, GOOD, BETTER)
    assert [r.accepted for r in archive.rounds] == [H0.hash, Harness(BETTER.source).hash]
    assert accepted.hash == Harness(BETTER.source).hash
    again = str(fresh(archive.phase.score_key))  # type: ignore[union-attr]
    played = [c.hash for c in archive.candidates if again in c.scores]
    assert played == [H0.hash, Harness(LUCKY.source).hash, Harness(BETTER.source).hash]
    assert sum("not confirmed under fresh seeds" in line for line in said) == 1
    assert sum("confirmed under fresh seeds" in line for line in said) == 2
    assert archive.rounds[0].confirmed is not None and archive.rounds[0].confirmed < 0.5
    show_archive(archive.folder)
    shown = capsys.readouterr().out
    assert shown.count("% under fresh seeds of 12") == 3
    assert f"accepted {Harness(BETTER.source).hash} at 91.7 %, 91.7 % under fresh seeds" in " ".join(shown.split())


def test_an_accepted_harness_is_not_left_for_one_that_is_a_little_better(domain: Domain, tmp_path: Path) -> None:
    little = rewording("Other")
    accepted, archive, _ = paired(domain, tmp_path, little, GOOD)
    assert accepted.hash == Harness(GOOD.source).hash
    again = str(fresh(archive.phase.score_key))  # type: ignore[union-attr]
    assert again not in archive[Harness(little.source).hash].scores, "no evidence, no second look, no rollouts"


class Killed(BaseException):
    """What a kill looks like from within."""


def kill_at_every_write(
    play: Callable[[Path], object], folder: Path, monkeypatch: pytest.MonkeyPatch, every: int = 1
) -> None:
    """Kill what `play` does at each write of the archive in turn, do it again, and compare with an undisturbed one."""
    play(folder / "undisturbed")
    wanted, write, done, fatal = files(folder / "undisturbed"), archive_module.write_atomic, False, 0

    def dying(path: Path, data: bytes) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed
        write(path, data)

    while not done:
        left, killed = fatal, folder / f"killed-{fatal}"
        monkeypatch.setattr(archive_module, "write_atomic", dying)
        try:
            play(killed)
            done = True
        except Killed:
            monkeypatch.setattr(archive_module, "write_atomic", write)
            play(killed)
        assert files(killed) == wanted, fatal
        fatal += every
    assert fatal > every


def test_killed_at_any_write_it_confirms_the_same_ones_and_nothing_is_played_twice(
    domain: Domain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_at_every_write(lambda folder: paired(domain, folder, LUCKY, GOOD, BETTER), tmp_path, monkeypatch, every=23)


def test_the_command_line_takes_both_and_says_what_is_wrong() -> None:
    command = parse(["search", "--acceptance", "paired", "--level", "0.05"])
    assert isinstance(command, config.SearchConfig)
    assert (command.search.acceptance, command.search.level) == ("paired", 0.05)
    assert parse(["run"]).search.acceptance == "best"  # type: ignore[union-attr]
    for given, says in ((["--acceptance", "worst"], "paired"), (["--level", "1"], "--level 1: expected a level")):
        with pytest.raises(UserError, match=says):
            parse(["search", *given])


def test_a_search_plans_for_what_it_may_have_to_confirm(domain: Domain, tmp_path: Path) -> None:
    planned = config.SearchConfig(rounds=2, candidates=2, tasks=12, acceptance="paired")
    paired(domain, tmp_path, LUCKY, GOOD, BETTER)
    most = plan_of(planned, "harness-only", domain).rollouts()
    assert most - CONFIG.tasks == Ledger(tmp_path / "ledger.jsonl").rollouts(), "but for a candidate not handed in"
