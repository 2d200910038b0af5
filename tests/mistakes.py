"""What a user's mistake at the command line looks like."""

from __future__ import annotations

import pytest

from whale_train import cli


def one_line(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """Run a command that must fail as a user's mistake; returns its one line."""
    assert cli.main(argv) == 2
    said = capsys.readouterr()
    lines = said.err.strip().splitlines()
    assert said.out == ""
    assert len([line for line in lines if line.startswith("whale: ")]) == 1, said.err
    assert "Traceback" not in said.err
    assert lines[-1].startswith("whale: ")
    return lines[-1]
