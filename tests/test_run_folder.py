"""A run folder says what its run took, also when its command is given again."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from whale_train.config import EvalConfig
from whale_train.run_folder import RunFolder


def test_a_run_that_is_said_again_took_as_long_as_the_first_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter([1000.0, 1300.0, 9000.0, 9002.5])
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    for _ in range(2):
        with RunFolder(EvalConfig(out=tmp_path / "run"), "full") as folder:
            folder.write_result(seconds=folder.seconds())
        assert json.loads((tmp_path / "run" / "result.json").read_bytes())["seconds"] == 300.0
