"""What a step logs reaches the places that TRL's users look at."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_agent
from rsft_runs import curve, trainer
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def test_tensorboard_has_every_figure_of_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    made = trainer(tmp_path / "run", harness=tiny_agent.ONE_TURN, max_steps=2, report_to="tensorboard")
    made.train()
    board = EventAccumulator(str(tmp_path / "board"))
    board.Reload()
    shown = {tag: [event.value for event in board.Scalars(tag)] for tag in board.Tags()["scalars"]}
    logged = curve(made)
    assert len(logged) == 2
    for name in logged[0].keys() - {"epoch", "step"}:
        assert shown[f"train/{name}"] == pytest.approx([entry[name] for entry in logged], rel=1e-5)
