"""Racing: who is dropped can hardly win, is compared with nobody, costs what it played, and a kill changes nothing."""

from __future__ import annotations

import shutil
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_runs import H0, files, rewording, run

from whale_envs import Domain, Harness, UserError
from whale_envs.domains import load_domain
from whale_train.arguments import parse
from whale_train.ledger import Ledger
from whale_train.meta_harness import archive as archive_module
from whale_train.meta_harness.acceptance import choose
from whale_train.meta_harness.archive import Archive
from whale_train.meta_harness.evaluate import split_tasks
from whale_train.meta_harness.proposers.scripted import ScriptedProposer
from whale_train.meta_harness.racing import LEVEL, LOOK, alike, catch_up, stages
from whale_train.meta_harness.records import Outcome, Score, ScoreKey
from whale_train.meta_harness.search import SearchSettings
from whale_train.policies.base import Request
from whale_train.policies.scripted import ScriptedPolicy

pytestmark = pytest.mark.usefixtures("no_fsync")

CONFIG = SearchSettings(rounds=1, candidates=4, tasks=48, refills=0, backoff=0, racing=True)
#: Tasks here after which one that makes no difference is dropped.
ALIKE = 32
BAD, EVEN, GOOD, TWIN = rewording("Bad"), rewording("Even"), rewording("Good"), rewording("Twin")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whale_train.meta_harness.racing.ALIKE", ALIKE)


@pytest.fixture(scope="module")
def domain() -> Domain:
    return load_domain("search-qa")


def policy(domain: Domain) -> ScriptedPolicy:
    """Answers half of the tasks right, under EVEN in other words; under BAD none, under GOOD three quarters."""
    tasks, _ = split_tasks(domain.splits.harness, CONFIG.shadow, CONFIG.tasks)
    known = {t.shown["question"]: (place, t.gold[0]) for place, t in enumerate(tasks)}

    def answer(request: Request) -> str:
        shown = request.ask.messages[1]["content"]
        place, gold = known.get(shown.partition("uestion: ")[2].partition("\n")[0], (0, "x"))
        right = {"Bad": 0, "Goo": 3}.get(shown[:3], 2) > place % 4
        return f"{'Well: ' * (shown[:3] == 'Eve')}<answer>{gold if right else 'nobody'}</answer>"

    return ScriptedPolicy(answer, "policy")


def race(domain: Domain, folder: Path, config: SearchSettings = CONFIG) -> tuple[Harness, Archive, list[str]]:
    accepted, _, told = run(domain, folder, ScriptedProposer(BAD, TWIN, EVEN, GOOD), config, policy(domain))
    return accepted, Archive(folder / "archive", "search-qa"), told.lines


def test_one_that_is_far_behind_or_makes_no_difference_stops_and_costs_what_it_played(
    domain: Domain, tmp_path: Path
) -> None:
    accepted, archive, said = race(domain, tmp_path)
    key = str(archive.phase.score_key)  # type: ignore[union-attr]
    scores = {c.hash: c.scores[key] for c in archive.candidates}
    bad, twin, even, good = (Harness(p.source).hash for p in (BAD, TWIN, EVEN, GOOD))
    assert (scores[bad].n, scores[bad].dropped) == (LOOK, True)
    assert (scores[twin].n, scores[twin].dropped) == (ALIKE, True)
    assert [scores[h].n for h in (H0.hash, even, good)] == [48] * 3 and not scores[even].dropped
    assert accepted.hash == good
    assert Ledger(tmp_path / "ledger.jsonl").rollouts() == 3 * 48 + ALIKE + LOOK
    assert len(archive.outcomes(bad, key)) == len(archive.episodes(bad)) == LOOK
    assert any(f"{bad} 0.000, 1.0 turns, dropped after {LOOK} tasks" in line for line in said)
    before = files(tmp_path)
    race(domain, tmp_path)
    assert files(tmp_path) == before


def test_those_who_play_on_score_as_they_do_without_a_race(domain: Domain, tmp_path: Path) -> None:
    _, raced, _ = race(domain, tmp_path / "raced")
    _, calm, _ = race(domain, tmp_path / "calm", SearchSettings(1, 4, 48, refills=0))
    key = raced.phase.score_key  # type: ignore[union-attr]
    for hash in (Harness(p.source).hash for p in (EVEN, GOOD)):
        assert raced.outcomes(hash, key) == calm.outcomes(hash, key)
        assert raced.episodes(hash, key) == calm.episodes(hash, key)


def test_a_mean_over_fewer_tasks_is_not_accepted(domain: Domain, tmp_path: Path) -> None:
    archive = Archive(tmp_path, "search-qa")
    old, new = (archive.add(s, "", (), (), "x") for s in (H0.source, GOOD.source))
    key = ScoreKey("w", "d", 0)
    archive.record(old.hash, key, Score(0.5, 0.1, 100, 2.0, "u"), [])
    archive.record(new.hash, key, Score(0.9, 0.1, 32, 2.0, "v", dropped=True), [])
    assert choose(archive, key, old.hash) == old.hash
    assert archive.scored(key) == [old]


class Killed(BaseException):
    """What a kill looks like from within."""


def test_killed_at_any_write_the_same_ones_are_dropped(
    domain: Domain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = replace(CONFIG, tasks=36)
    race(domain, tmp_path / "undisturbed", few)
    write = archive_module.write_atomic
    for fatal in (13, 25):
        left = fatal

        def dying(path: Path, data: bytes) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            write(path, data)

        monkeypatch.setattr(archive_module, "write_atomic", dying)
        with pytest.raises(Killed):
            race(domain, tmp_path / str(fatal), few)
        monkeypatch.setattr(archive_module, "write_atomic", write)
        race(domain, tmp_path / str(fatal), few)
        assert files(tmp_path / str(fatal)) == files(tmp_path / "undisturbed")


def test_outcomes_that_are_gone_are_written_again_from_the_raw_episodes(domain: Domain, tmp_path: Path) -> None:
    short = replace(CONFIG, candidates=1, tasks=33)

    def play(rounds: int, folder: Path) -> None:
        run(domain, folder, ScriptedProposer(EVEN, GOOD), replace(short, rounds=rounds), policy(domain))

    play(1, tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    play(2, tmp_path / "two")
    start, even = (Path("archive/candidates") / h for h in (H0.hash, Harness(EVEN.source).hash))
    shutil.copytree(tmp_path / "one", tmp_path / "spoilt")
    (tmp_path / "spoilt" / start / "outcomes.jsonl").unlink()
    cut = tmp_path / "spoilt" / even / "outcomes.jsonl"
    cut.write_bytes(b"".join(cut.read_bytes().splitlines(keepends=True)[:10]))
    play(2, tmp_path / "spoilt")
    assert files(tmp_path / "spoilt") == files(tmp_path / "two")
    for name, says in (("outcomes.jsonl", "less than the 33 tasks"), ("episodes.jsonl.zst", "has 0 of 33 episodes")):
        shutil.copytree(tmp_path / "one", tmp_path / name)
        (tmp_path / name / start / "episodes.jsonl.zst").unlink()
        (tmp_path / name / start / name).unlink(missing_ok=True)
        with pytest.raises(UserError, match=says):
            play(2, tmp_path / name)


# ---------------------------------------------------------------------------------------------- the test


def test_the_stages_cover_all_tasks_in_order() -> None:
    assert stages(48) == [(0, 16), (16, 32), (32, 48)]
    assert stages(35) == [(0, 16), (16, 32), (32, 35)]
    assert stages(16) == [(0, 16)] and stages(1) == [(0, 1)]


@given(st.integers(0, 40), st.integers(0, 40), st.integers(2, 8))
def test_it_is_a_chance_that_grows_with_wins_and_falls_with_losses(wins: int, losses: int, part: int) -> None:
    share = 1 / part
    assert 0 < catch_up(wins, losses, share) <= 1 + 1e-9
    assert catch_up(wins + 1, losses, share) >= catch_up(wins, losses, share) - 1e-9
    assert catch_up(wins, losses + 1, share) <= catch_up(wins, losses, share) + 1e-9


def test_it_is_fishers_exact_test() -> None:
    """1 of 7 discordant tasks won, of 16 in all, 9 of them wins: by hand."""
    by_hand = Fraction(9 * 7, 11440)  # C(9, 1) C(7, 6) / C(16, 7); with no win, 7 losses would be all there are
    assert catch_up(1, 6, 0.5) == pytest.approx(float(by_hand + Fraction(1, 11440)))
    assert catch_up(0, 0, 0.5) == 1
    assert catch_up(0, 6, 0.999) < catch_up(0, 6, 0.1), "with fewer tasks left there is less to catch up on"


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1), st.floats(0.05, 0.6))
def test_one_that_leads_on_the_whole_is_dropped_by_a_look_no_more_often_than_the_level(seed: int, apart: float) -> None:
    rng = np.random.default_rng(seed)
    half = round(128 * apart)
    signs = np.array([1] * (half + 1) + [-1] * half + [0] * (255 - 2 * half))
    for _, looked in stages(256)[:-1]:
        drawn = [rng.permutation(signs)[:looked] for _ in range(300)]
        dropped = [catch_up(int((d > 0).sum()), int((d < 0).sum()), looked / 256) <= LEVEL for d in drawn]
        assert np.mean(dropped) < LEVEL + 4 * (LEVEL / 300) ** 0.5


def test_one_that_makes_no_difference_is_known_by_what_was_said_and_what_came_of_it() -> None:
    played = {f"t{i}": Outcome("k", f"t{i}", float(i % 2), "", 1, said=f"s{i}") for i in range(4)}
    assert alike(list(played.values())[:2], played)
    other = [Outcome("", "t0", 0.0, "", 2, said="s0"), Outcome("", "t1", 1.0, "", 1, said="other")]
    assert not alike(other, played)
    assert not alike([Outcome("", "t0", 1.0, "", 1, said="s0")], played)


def test_where_what_was_said_is_not_on_file_nobody_is_taken_for_a_twin() -> None:
    old = msgspec.json.decode(b'{"key":"k","task":"t0","score":1.0,"reason":"","turns":1,"failed":""}', type=Outcome)
    assert not alike([old], {"t0": old})
    assert not alike([Outcome("", "t0", 1.0, "", 1, said="s0")], {"t0": old})


def test_the_command_line_takes_it() -> None:
    assert parse(["search", "--racing"]).search.racing  # type: ignore[union-attr]
    assert not parse(["run"]).search.racing  # type: ignore[union-attr]
