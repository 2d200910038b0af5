"""The report: from a run folder to `report.html` (one file, nothing fetched), `report.png` and `behaviours.png`; from
several to `comparison.html` and `comparison.png`.

It reads, and nothing else:

    run.json                              `whale_train.run_folder.RunInfo`
    result.json                           once the run has finished: "seconds", "shadow", "command"
    arms/<arm>/state.json                 the phases that have ended: {"kind": "start" | "weights" | "harness",
                                          "rollouts": cumulative}
    arms/<arm>/curve.jsonl                one line a tested point, the start first: {"rollouts": cumulative, test not
                                          counted, "mean@8": x, "ci95": [low, high], "phase": name, "kind": "start" |
                                          "weights" | "harness" (of the phase that led to the point), "cycle": n,
                                          "harness": hash, "weights": hash, "test": folder under test/}
    test/<test>/evaluation.json           `whale_train.evaluate.Evaluation` of a point, with
                episodes.jsonl            every test episode of it
    arms/<arm>/ledger.jsonl               `whale_train.ledger`
    arms/<arm>/archive/                   `whale_train.meta_harness.archive`

<arm> is whale, weights-only or harness-only; `whale train` and `whale search` have the one arm that they are. Whatever
is not there yet is left out, so a run can be looked at while it goes on.

`page` puts together what `harnesses`, `costs` and `episodes` make of a run; `comparison` is the page of several, which
`pooling` puts together by configuration; `figures` draws, `elements` are what pages are made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from whale_envs.episode import write_atomic
from whale_train.report.comparison import comparison_page, draw_comparison
from whale_train.report.data import read_report
from whale_train.report.figures import draw, draw_behaviours, png, svg
from whale_train.report.page import page
from whale_train.report.pooling import comparable, pooled


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Write the report of a run folder into `out` (by default the folder itself); returns the page's path.

    Raises `UserError` when the folder is no run folder, has no tested point, or holds a malformed file.
    """
    run, out = read_report(folder), out or folder
    curves = draw(run.arms, f"Test scores on {run.info.config['domain']}, seed {run.info.seed}")
    behaviours = draw_behaviours(run.arms)
    html = page(run, svg(curves, "curves"), svg(behaviours, "behaviours") if behaviours else None)
    png(curves, out / "report.png")
    if behaviours:
        png(behaviours, out / "behaviours.png")
    write_atomic(out / "report.html", html.encode())
    return out / "report.html"


def write_comparison(folders: Sequence[Path], out: Path) -> Path:
    """Write the comparison of several run folders into `out`; returns the page's path.

    Runs of one configuration are pooled over their seeds: see `whale_train.report.pooling`. Raises `UserError` as
    `write_report` does, for runs that were not tested on the same tasks, and for the same run twice.
    """
    runs = [read_report(folder) for folder in folders]
    comparable(runs)
    groups, series = pooled(runs)
    figure = draw_comparison(groups, series)
    html = comparison_page(groups, series, svg(figure, "comparison"))
    png(figure, out / "comparison.png")
    write_atomic(out / "comparison.html", html.encode())
    return out / "comparison.html"
