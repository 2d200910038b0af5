"""whale doctor: says what is lacking and what to do about it, and never shows a key."""

from __future__ import annotations

from pathlib import Path

import pytest

from whale_envs.errors import UserError
from whale_train import doctor
from whale_train.doctor import Finding, findings


@pytest.fixture(autouse=True)
def light(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without loading the worlds, and with no bundled model."""

    class Loaded:
        class splits:
            weight, harness, test = [1] * 3, [1] * 2, [1]

    monkeypatch.setattr(doctor, "load_domain", lambda name: Loaded)
    monkeypatch.setattr(doctor, "MODELS", tmp_path)
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)


def found(out: Path, what: str) -> Finding:
    return next(f for f in findings(out) if f.what == what)


def test_every_lack_says_what_to_do(tmp_path: Path) -> None:
    for finding in findings(tmp_path):
        assert finding.state == "ok" or finding.advice or ";" in finding.fact, finding
    assert "pretrain math" in found(tmp_path, "math model").advice
    assert found(tmp_path, "chess data").fact == "offline: 3 weight, 2 harness, 1 test"


def test_key_is_said_to_be_there_and_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert found(tmp_path, "ANTHROPIC_API_KEY").state == "lacks"
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")
    assert found(tmp_path, "ANTHROPIC_API_KEY").state == "ok"
    doctor.doctor(tmp_path)
    said = capsys.readouterr().out
    assert "sk-secret" not in said
    assert "whale-rl[vllm]" in said  # brackets are no markup


def test_no_isolation_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor.sandbox, "tier", lambda: "none: seccomp is missing")
    assert doctor.doctor(tmp_path) == 1
    assert "--unsafe" in capsys.readouterr().out


def test_folder_that_cannot_be_written_is_broken() -> None:
    finding = found(Path("/dev/null/runs"), "run folder")
    assert finding.state == "broken" and "--out" in finding.advice


def test_data_that_does_not_load_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise UserError(f"{name} is torn")

    monkeypatch.setattr(doctor, "load_domain", broken)
    assert found(tmp_path, "math data") == Finding(
        "math data", "broken", "math is torn", "reinstall the package: its data files are not whole"
    )


def test_folder_that_is_not_there_yet_is_judged_by_its_parent(tmp_path: Path) -> None:
    assert found(tmp_path / "a" / "b", "run folder").fact.startswith(str(tmp_path))
    assert list(tmp_path.iterdir()) == []
