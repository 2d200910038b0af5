"""Reports: every number comes from the files, nothing is fetched, and a run that has not ended can be looked at."""

from __future__ import annotations

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
from whale_train.report_data import read_report
from whale_train.report_html import pick


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "run")


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


def test_page_is_whole_by_itself_and_says_the_numbers_on_disk(run: Path) -> None:
    html = write_report(run).read_text()
    page = Wellformed(html)
    assert page.fetched == []
    assert "@import" not in html and "url(http" not in html
    for arm in ("whale", "weights-only", "harness-only"):
        end = json.loads((run / "arms" / arm / "curve.jsonl").read_text().splitlines()[-1])
        assert f"{100 * end['mean@8']:.1f} [{100 * end['ci95'][0]:.1f}, {100 * end['ci95'][1]:.1f}]" in page.text
        assert end["harness"] in page.text and end["weights"] in page.text
    first, last = (load_evaluation(run / "test" / at) for at in ("whale-0", "whale-4"))
    assert first is not None and last is not None
    gain = paired_difference(first.scores, last.scores)
    assert f"{100 * gain.mean:+.1f} [{100 * gain.low:+.1f}, {100 * gain.high:+.1f}]" in page.text
    assert (run / "report.png").read_bytes().startswith(b"\x89PNG")


def test_what_a_harness_or_a_model_wrote_is_shown_not_run(run: Path) -> None:
    page = Wellformed(write_report(run).read_text())
    assert "<twice>" in page.text  # a hypothesis with markup in it
    assert "Nobody & <b>" in page.text  # and a reply


def test_diff_shows_what_changed(run: Path) -> None:
    html = write_report(run).read_text()
    added = re.findall(r'<span class="a">(.*?)</span>', html)
    removed = re.findall(r'<span class="d">(.*?)</span>', html)
    assert added == ["+PASSAGES = 2", "+WORDS = 48"]
    assert removed == ["-PASSAGES = 1", "-WORDS = 24"]


def test_a_search_score_stands_beside_its_optimism_and_what_fresh_seeds_and_shadow_tasks_say(run: Path) -> None:
    assert "42.0 1.7 38.7 –" in " ".join(Wellformed(write_report(run).read_text().replace("<td", " <td")).text.split())
    result = json.loads((run / "result.json").read_text())
    begun = {"mean@1": 0.12, "ci95": [0.06, 0.19]}
    result["shadow"] = {"mean@1": 0.401, "ci95": [0.31, 0.49], "tasks": 96, "initial": begun}
    (run / "result.json").write_text(json.dumps(result))
    text = " ".join(Wellformed(write_report(run).read_text().replace("<td", " <td")).text.split())
    assert "42.0 1.7 38.7 40.1 [31.0, 49.0]" in text
    assert "no proposer saw: 12.0 % at the start, 40.1 % with the accepted harness." in text


def test_same_run_gives_the_same_bytes(run: Path, tmp_path: Path) -> None:
    first, second = write_report(run, tmp_path / "a"), write_report(run, tmp_path / "b")
    assert first.read_bytes() == second.read_bytes()
    assert (tmp_path / "a" / "report.png").read_bytes() == (tmp_path / "b" / "report.png").read_bytes()


def test_run_in_progress_is_reported_as_such(run: Path) -> None:
    (run / "result.json").unlink()
    shutil.rmtree(run / "arms" / "harness-only")
    curve = run / "arms" / "weights-only" / "curve.jsonl"
    curve.write_text(curve.read_text().splitlines()[0] + "\n")
    shutil.rmtree(run / "arms" / "whale" / "archive")
    text = Wellformed(write_report(run).read_text()).text
    assert "Not finished yet" in text
    assert "harness only" not in text


def test_missing_test_files_leave_a_dash(run: Path) -> None:
    shutil.rmtree(run / "test" / "weights-only-2")
    assert "–" in Wellformed(write_report(run).read_text()).text


def test_scores_come_from_episodes_where_the_summary_is_missing(run: Path) -> None:
    arm = read_report(run).arms[0]
    told, rates = arm.scores(-1), arm.behaviours(-1)
    (run / "test" / "whale-4" / "evaluation.json").unlink()
    arm = read_report(run).arms[0]
    assert arm.scores(-1) == told and arm.behaviours(-1) == rates


def test_shown_pairs_are_of_one_task_and_seed_each(run: Path) -> None:
    arm = read_report(run).arms[0]
    pairs = pick(arm.episodes(0), arm.episodes(-1))
    assert len({before.task_id for before, _ in pairs}) == len(pairs) > 1
    assert all((b.task_id, b.seed) == (a.task_id, a.seed) for b, a in pairs)


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("run.json", None, "is no run folder"),
        ("run.json", "{", "malformed"),
        ("arms/whale/curve.jsonl", '{"rollouts": 1}\n', "curve.jsonl:1 is no point"),
        ("arms/whale/curve.jsonl", "nonsense\n", "curve.jsonl:1 is no point"),
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


def test_run_without_a_tested_point_is_one_line(run: Path) -> None:
    shutil.rmtree(run / "arms")
    with pytest.raises(UserError, match="no tested point yet"):
        write_report(run)
