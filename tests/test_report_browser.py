"""Reports in a real browser: tables and figures are there to be seen, nothing goes wrong, nothing is fetched."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser import CHROMIUM, Browser
from fake_run import make_run

from whale_train.report import write_comparison, write_report

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no browser here: apt-get install chromium")

#: The width and height on screen, and the number of drawn paths, of every figure.
FIGURES = """[...document.querySelectorAll('figure svg')].map(figure => {
  const box = figure.getBoundingClientRect()
  return [box.width, box.height, figure.querySelectorAll('path').length]
})"""
#: The rows of every table.
TABLES = "[...document.querySelectorAll('table')].map(table => table.rows.length)"
#: Everything that an element asks for, but for places within the page.
OUTSIDE = """[...document.querySelectorAll('*')].flatMap(element => ['src', 'href', 'xlink:href', 'srcset', 'data']
  .map(name => element.getAttribute(name))).filter(value => value && !value.startsWith('#'))"""
#: Names that figures use of each other: each has to be that of one element.
NAMES = """[...document.querySelectorAll('[id]')].map(element => element.id)"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [
        make_run(tmp_path_factory.mktemp("runs") / str(seed), tasks=10, arms=("whale", "harness-only"), seed=seed)
        for seed in (0, 1)
    ]


def look(browser: Browser, page: Path, figures: int, tables: int) -> None:
    """What holds for every page."""
    drawn = browser.evaluate(FIGURES)
    assert len(drawn) == figures
    assert all(width > 600 and height > 150 and paths > 10 for width, height, paths in drawn)
    rows = browser.evaluate(TABLES)
    assert len(rows) == tables and min(rows) > 1
    assert browser.requests == [page.resolve().as_uri()]
    assert browser.evaluate(OUTSIDE) == [] and browser.evaluate("document.scripts.length") == 0
    assert browser.complaints == []
    names = browser.evaluate(NAMES)
    assert len(names) == len(set(names))
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth"), "wider than the window"


def test_a_report_is_all_there_and_fetches_nothing(runs: list[Path], tmp_path: Path) -> None:
    page = write_report(runs[0], tmp_path / "out")
    with Browser(page, tmp_path / "profile") as browser:
        look(browser, page, figures=2, tables=11)
        assert browser.evaluate("document.querySelectorAll('.pair').length") == 10
        seen = "[...document.querySelectorAll('pre.diff, .talk')].map(e => e.checkVisibility() && e.clientHeight > 20)"
        assert set(browser.evaluate(seen)) == {True, False}, "some are folded"
        browser.evaluate("document.querySelectorAll('summary').forEach(s => s.parentElement.open || s.click())")
        assert all(browser.evaluate(seen)), "a click opens them"


def test_a_comparison_is_all_there_and_fetches_nothing(runs: list[Path], tmp_path: Path) -> None:
    page = write_comparison(runs, tmp_path / "out")
    with Browser(page, tmp_path / "profile") as browser:
        look(browser, page, figures=1, tables=3)
