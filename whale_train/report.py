"""The report: from a run folder to `report.html` (one file, nothing fetched) and `report.png`.

It reads, and nothing else:

    run.json                              `whale_train.run_folder.RunInfo`
    result.json                           once the run has finished: "seconds", "shadow"
    arms/<arm>/state.json                 the phases that have ended: {"kind": "start" | "weights" | "harness",
                                          "rollouts": cumulative}
    arms/<arm>/curve.jsonl                one line a tested point, the start first: {"rollouts": cumulative, test not
                                          counted, "mean@8": x, "ci95": [low, high], "phase": name, "kind": "start" |
                                          "weights" | "harness" (of the phase that led to the point), "cycle": n,
                                          "harness": hash, "weights": hash, "test": folder under test/}
    test/<test>/evaluation.json           `whale_train.evaluate.Evaluation` of a point, with
                episodes.jsonl            every test episode of it
    arms/<arm>/ledger.jsonl               `whale_train.ledger`
    arms/<arm>/harness.py                 the accepted harness
    arms/<arm>/archive/                   `whale_train.meta_harness.archive`

<arm> is whale, weights-only or harness-only; `whale train` and `whale search` have the one arm that they are. Whatever
is not there yet is left out, so a run can be looked at while it goes on.
"""

from __future__ import annotations

from pathlib import Path

from whale_envs.episode import write_atomic
from whale_train.report_data import read_report
from whale_train.report_figure import draw, png, svg
from whale_train.report_html import page


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Write the report of a run folder into `out` (by default the folder itself); returns the page's path.

    Raises `UserError` when the folder is no run folder, has no tested point, or holds a malformed file.
    """
    run = read_report(folder)
    figure = draw(run.arms, f"Test scores on {run.info.config['domain']}, seed {run.info.seed}")
    out = out or folder
    png(figure, out / "report.png")
    write_atomic(out / "report.html", page(run, svg(figure)).encode())
    return out / "report.html"
