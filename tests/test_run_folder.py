"""A run folder says what its run has taken, also when the command that ended it is given again."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from whale_train.config import EvalConfig
from whale_train.run_folder import RunFolder


def test_a_run_that_is_said_again_took_as_long_as_both_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([1000.0, 1300.0, 9000.0, 9002.5])
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    for expected in (300.0, 302.5):
        with RunFolder(EvalConfig(out=tmp_path / "run"), "full") as folder:
            folder.write_result(seconds=folder.seconds())
        assert json.loads((tmp_path / "run" / "result.json").read_bytes())["seconds"] == expected
