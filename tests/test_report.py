"""Reports: every number comes from the files, nothing is fetched, and a run that has not ended can be looked at."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from fake_run import make_run

from whale_envs.errors import UserError
from whale_train.evaluate import load_evaluation
from whale_train.metrics import paired_difference
from whale_train.report import write_report
from whale_train.report.data import read_report
from whale_train.report.episodes import SHOWN, pick
from whale_train.report.figures import draw, draw_behaviours
from whale_train.report.page import page


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "run", tasks=12)


@pytest.fixture(scope="module")
def written(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where its report was written to."""
    return write_report(finished, tmp_path_factory.mktemp("reports")).parent


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copy"))


class Wellformed(HTMLParser):
    """Fails on tags that do not match; collects text and whatever would be fetched."""

    VOID = frozenset({"meta", "br", "img", "use", "path", "rect"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text, self.fetched = "", []  # type: ignore[var-annotated]
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [v for k, v in attrs if k in ("src", "href", "xlink:href") and v and not v.startswith("#")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def html_of(run: Path) -> str:
    """The page but for its figures, which take most of the time."""
    return page(read_report(run), "<svg></svg>", "<svg></svg>")


def text_of(run: Path) -> str:
    """What the page says, cells apart from each other."""
    return " ".join(Wellformed(re.sub("<(?=t|dd)", " <", html_of(run))).text.split())


def test_page_is_whole_by_itself_and_says_the_numbers_on_disk(run: Path, written: Path) -> None:
    html = (written / "report.html").read_text()
    said = Wellformed(html)
    assert html.count("<svg") == 2 and said.fetched == []
    assert "@import" not in html and "url(http" not in html
    for arm in ("whale", "weights-only", "harness-only"):
        end = json.loads((run / "arms" / arm / "curve.jsonl").read_text().splitlines()[-1])
        assert f"{100 * end['mean@8']:.1f} [{100 * end['ci95'][0]:.1f}, {100 * end['ci95'][1]:.1f}]" in said.text
        assert end["harness"] in said.text and end["weights"] in said.text
    first, last = (load_evaluation(run / "test" / at) for at in ("whale-0", "whale-4"))
    assert first is not None and last is not None
    gain = paired_difference(first.scores, last.scores)
    assert f"{100 * gain.mean:+.1f} [{100 * gain.low:+.1f}, {100 * gain.high:+.1f}]" in said.text
    for name in ("report.png", "behaviours.png"):
        assert (written / name).read_bytes().startswith(b"\x89PNG")


def test_what_a_harness_or_a_model_wrote_is_shown_not_run(run: Path) -> None:
    said = Wellformed(html_of(run))
    assert "<twice>" in said.text  # a hypothesis with markup in it
    assert "Nobody & <b>" in said.text  # and a reply


def test_each_accepted_harness_has_its_hypothesis_and_its_diff_against_the_one_before(run: Path) -> None:
    diffs = re.findall(r'<pre class="diff">(.*?)</pre>', html_of(run))
    lines = [re.findall(r'<span class="[ad]">(.*?)</span>', diff) for diff in diffs]
    first = ["-PASSAGES = 1", "-WORDS = 24", "+PASSAGES = 2", "+WORDS = 48"]
    second = ["-TURNS = 3", "+TURNS = 4"]
    both = ["-TURNS = 3", "-PASSAGES = 1", "-WORDS = 24", "+TURNS = 4", "+PASSAGES = 2", "+WORDS = 48"]
    assert lines == [both, first, second, first], "from first to last, then each; the other arm's one"
    arm = read_report(run).arms[0]
    assert [step.when for step in arm.steps] == ["start", "cycle 1, round 1", "cycle 2, round 1"]
    assert arm.steps[-1].hash == arm.curve[-1].harness
    text = text_of(run)
    assert "Another turn finds what is left. change 2 43.0" in text and "replaced 2 times" in text


def test_a_harness_that_comes_back_is_accepted_again(run: Path) -> None:
    path = run / "arms/whale/archive/rounds.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    start = read_report(run).arms[0].steps[0].hash
    rows += [rows[-1] | {"round": 2}, rows[-1] | {"phase": "cycle 3", "accepted": start}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    steps = read_report(run).arms[0].steps
    assert [s.when for s in steps] == ["start", "cycle 1, round 1", "cycle 2, round 1", "cycle 3, round 1"]
    assert steps[-1].hash == start and steps[-1].source == steps[0].source


def test_costs_are_in_two_currencies_with_the_judge_apart_and_the_tests_out_of_the_total(run: Path) -> None:
    costs = text_of(run).partition("What it cost")[2].partition("weights only")[0]
    for row in ("search 2,700", "proposer – – – – 0 min 03 s $1.25", "judge – – – – – $0.50", "$0.25"):
        assert row in costs
    assert "total, tests not counted 4,800 " in costs and costs.count("$2.00") == 1
    assert "sampling 2,100 " in costs and "test – " in costs


def test_the_scores_of_each_data_set_are_beside_each_other(run: Path) -> None:
    ends = [load_evaluation(run / "test" / at) for at in ("whale-0", "whale-4")]
    text, names = text_of(run), ("1-hop", "2-hop")
    for name in names:
        start, end = (e.sets[name] for e in ends if e is not None)
        cells = (f"{100 * e.mean:.1f} [{100 * e.low:.1f}, {100 * e.high:.1f}]" for e in (start, end))
        assert f"{name} {start.tasks} {' '.join(cells)}" in text
    for path in run.glob("test/*/evaluation.json"):
        kept = json.loads(path.read_bytes())
        path.write_text(json.dumps(kept | {"sets": {}}))
    assert "Scores by data set" in text and "Scores by data set" not in text_of(run)


def test_behaviours_of_every_tested_point_are_drawn(run: Path) -> None:
    arms = read_report(run).arms
    figure = draw_behaviours(arms)
    assert figure is not None
    drawn = {axes.get_title(loc="left"): axes.lines for axes in figure.axes if axes.get_visible()}
    for name in arms[0].behaviours(0):
        for arm, line in zip(arms, drawn[name.replace("_", " ")], strict=True):
            x, y = line.get_data()
            assert list(x) == [p.rollouts for p in arm.curve]
            assert list(y) == [pytest.approx(100 * arm.behaviours(at)[name]) for at in range(len(arm.curve))]


def test_phases_are_bands_from_where_one_ends_to_where_the_next_does(run: Path) -> None:
    figure = draw(read_report(run).arms, "title")
    (axes,) = figure.axes
    spans = [p for p in axes.patches if p.get_transform() != axes.transData and p.get_y() == 0 and p.get_height() == 1]
    assert [(p.get_x(), p.get_x() + p.get_width()) for p in spans] == [
        (0, 600), (600, 900), (900, 1500), (1500, 1800)
    ]  # fmt: skip
    assert len({p.get_facecolor() for p in spans}) == 2


def test_a_search_score_stands_beside_its_optimism_and_what_fresh_seeds_and_shadow_tasks_say(run: Path) -> None:
    assert "42.0 1.7 38.7 –" in text_of(run)
    result = json.loads((run / "result.json").read_text())
    begun, gain = {"mean@8": 0.12, "ci95": [0.06, 0.19]}, {"mean": 0.281, "ci95": [0.22, 0.34]}
    result["shadow"] = {"mean@8": 0.401, "ci95": [0.31, 0.49], "tasks": 96, "initial": begun, "gain": gain}
    (run / "result.json").write_text(json.dumps(result))
    text = text_of(run)
    assert "43.0 1.7 38.7 40.1 [31.0, 49.0]" in text
    assert "no proposer saw: 12.0 % at the start, 40.1 % with the accepted harness." in text


def test_same_run_gives_the_same_bytes(run: Path, written: Path) -> None:
    page = write_report(run)
    assert page == run / "report.html"
    for name in ("report.html", "report.png", "behaviours.png"):
        assert (run / name).read_bytes() == (written / name).read_bytes()


def test_run_in_progress_is_reported_as_such(run: Path) -> None:
    (run / "result.json").unlink()
    shutil.rmtree(run / "arms" / "harness-only")
    curve = run / "arms" / "weights-only" / "curve.jsonl"
    curve.write_text(curve.read_text().splitlines()[0] + "\n")
    shutil.rmtree(run / "arms" / "whale" / "archive")
    text = text_of(run)
    assert "Not finished yet" in text
    assert "harness only" not in text


def test_missing_test_files_leave_a_dash(run: Path) -> None:
    shutil.rmtree(run / "test" / "weights-only-2")
    assert "–" in text_of(run)


def test_shown_episodes_are_those_of_the_smallest_hashes_whatever_came_of_them(run: Path) -> None:
    arm = read_report(run).arms[0]
    pairs = pick(arm.episodes(0), arm.episodes(-1))
    assert all((b.task_id, b.seed) == (a.task_id, a.seed) for b, a in pairs)
    smallest = sorted(arm.scores(0), key=lambda task: hashlib.sha256(task.encode()).hexdigest())[:SHOWN]
    assert [before.task_id for before, _ in pairs] == smallest and len(pairs) == 10
    lost = [e for e in arm.episodes(-1) if e.score == 0]
    assert {b.task_id for b, _ in pick(arm.episodes(0), lost)} <= {e.task_id for e in lost}
    sides = re.findall(r'<div class="note">(start|end) · <span class="(?:ok|bad)">', html_of(run))
    assert sides == ["start", "end"] * 10


def test_a_command_that_took_up_a_run_stands_beside_the_one_that_began_it(run: Path) -> None:
    assert "taken up last by" not in text_of(run)
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps(result | {"command": "whale run --curve"}))
    assert "taken up last by whale run --curve" in text_of(run)


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("run.json", None, "is no run folder"),
        ("run.json", "{", "malformed"),
        ("arms/whale/curve.jsonl", '{"rollouts": 1}\n', "curve.jsonl:1 is no point"),
        ("arms/whale/curve.jsonl", "nonsense\n", "curve.jsonl:1 is no point"),
        ("arms/whale/curve.jsonl", None, "curve.jsonl is gone or empty"),
        ("arms/whale/curve.jsonl", "", "curve.jsonl is gone or empty"),
        ("test/whale-0/episodes.jsonl", "{}\n", "episodes.jsonl:1 is damaged"),
        ("test/whale-0/evaluation.json", "{}", "evaluation.json is damaged"),
        ("arms/whale/archive/archive.json", "{}", "archive.json is damaged"),
    ],
)
def test_broken_file_is_named_in_one_line(run: Path, file: str, content: str | None, expected: str) -> None:
    if content is None:
        (run / file).unlink()
    else:
        (run / file).write_text(content)
    with pytest.raises(UserError, match=re.escape(expected)) as error:
        write_report(run)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("part", "name"), [("config", "domain"), ("hashes", "harness"), ("hashes", "data")])
def test_a_run_json_that_was_edited_is_named_in_one_line(run: Path, part: str, name: str) -> None:
    info = json.loads((run / "run.json").read_bytes())
    del info[part][name]
    (run / "run.json").write_text(json.dumps(info))
    with pytest.raises(UserError, match=r"run\.json is malformed"):
        write_report(run)


def test_run_without_a_tested_point_is_one_line(run: Path) -> None:
    shutil.rmtree(run / "arms")
    with pytest.raises(UserError, match="no tested point yet"):
        write_report(run)
