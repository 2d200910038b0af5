"""Progress display: says phase, counts, score and time left; plain and sparing where there is no terminal."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from whale_train import console
from whale_train.console import ConsoleProgress, Display, FileProgress, Snapshot, plain_line


class Clock:
    """Time that a test moves by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(console.time, "time", lambda: self.now)
        monkeypatch.setattr(console.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_a_line_says_phase_rollouts_score_and_time_left(clock: Clock) -> None:
    out = io.StringIO()
    with ConsoleProgress("whale", total=1000, stream=out) as progress:
        progress.begin("cycle 1 weights step 2/4", 512)
        for _ in range(10):
            clock.now += 3
            progress.advance(25)
        progress.score(0.432)
        clock.now += 10
        progress.advance(0)
    last = out.getvalue().splitlines()[-1]
    assert last == "whale  cycle 1 weights step 2/4 · 250/1000 rollouts · score 43.2 % · 2:00 left"


def test_plain_lines_are_few_however_much_is_reported(clock: Clock) -> None:
    out = io.StringIO()
    with ConsoleProgress("whale", total=10_000, stream=out) as progress:
        progress.begin("cycle 1", 10_000)
        for _ in range(10_000):
            clock.now += 0.01  # 100 seconds in all
            progress.advance(1)
    assert 10 <= len(out.getvalue().splitlines()) <= 25


def test_what_is_said_stays_and_is_printed_once(clock: Clock) -> None:
    out = io.StringIO()
    with ConsoleProgress("whale", stream=out) as progress:
        progress.say("accepted [abc] at 0.5")  # brackets are no markup
        progress.begin("next", 10)
        progress.advance(10)
    assert out.getvalue().count("accepted [abc] at 0.5") == 1


def test_another_process_is_followed_through_its_file(clock: Clock, tmp_path: Path) -> None:
    out = io.StringIO()
    paths = {"whale": tmp_path / "a" / "progress.json", "weights-only": tmp_path / "b" / "progress.json"}
    with Display(list(paths), out) as display:
        display.follow(paths)  # nothing is there yet
        child = FileProgress(paths["whale"], total=100, before=40)
        child.begin("cycle 2 harness", 60)
        child.say("round 1: kept")
        clock.now += 30
        child.advance(30)
        display.follow(paths)
        display.follow(paths)
    assert out.getvalue().count("round 1: kept") == 1
    assert "cycle 2 harness · 70/100 rollouts · 0:30 left" in out.getvalue()
    assert [p.name for p in paths["whale"].parent.iterdir()] == ["progress.json"]  # no draft is left


def test_a_process_taken_up_again_says_its_new_lines(clock: Clock, tmp_path: Path) -> None:
    out, path = io.StringIO(), tmp_path / "progress.json"
    with Display(["whale"], out) as display:
        for line in ("first job", "second job"):  # a test of a snapshot writes where its arm wrote before
            clock.now += 1
            FileProgress(path).say(line)
            display.follow({"whale": path})
    assert "first job" in out.getvalue() and "second job" in out.getvalue()


def test_who_tests_a_job_that_has_ended_does_not_say_that_it_starts(clock: Clock, tmp_path: Path) -> None:
    out, path = io.StringIO(), tmp_path / "progress.json"
    display = Display(["whale"], out)
    for phase in ("cycle 1", "test set"):
        progress = FileProgress(path, 8)
        for begun in (None, phase):
            if begun:
                progress.begin(begun, 8)
            clock.now += 60
            display.follow({"whale": path})
    assert [line.split(" · ")[0].split(maxsplit=1)[1] for line in out.getvalue().splitlines()] == [
        "starting",
        "cycle 1",
        "test set",
    ]


def test_time_left_is_silent_where_it_cannot_be_told() -> None:
    assert plain_line(Snapshot(phase="a", phase_total=10)) == "a · 0/10 rollouts"
    assert Snapshot(done=5, total=0, started=0, updated=9).seconds_left is None
    # what an earlier process did says nothing of this one's pace
    assert Snapshot(done=50, total=100, before=50, started=0, updated=9).seconds_left is None
    assert Snapshot(done=60, total=100, before=50, started=0, updated=10).seconds_left == 40
