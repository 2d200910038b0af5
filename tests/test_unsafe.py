"""A machine that offers no isolation: the commands refuse untrusted code in one line, unless it is asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from sandbox_place import ROOT, filtered

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="isolation needs Linux"),
]

HARNESS = """
from whale_envs.harness import user

def run(task, tools):
    yield [user(task.question)]
    return tools.python("6 * 7").stdout
"""


def _whale(*args: str) -> subprocess.CompletedProcess[str]:
    code = filtered("no seccomp", "import sys\nfrom whale_train.cli import main\nsys.exit(main(sys.argv[1:]))")
    return subprocess.run([sys.executable, "-c", code, *args], cwd=ROOT, capture_output=True, text=True, timeout=280)


def test_untrusted_code_is_refused_unless_asked_for(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(HARNESS)
    command = ["eval", "--domain", "math", "--harness", str(tmp_path / "mine.py"), "--limit", "2", "--repeats", "1"]
    refused = _whale(*command, "--out", str(tmp_path / "refused"))
    assert refused.returncode == 2 and "--unsafe" in refused.stderr and "seccomp" in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1, refused.stderr
    allowed = _whale(*command, "--out", str(tmp_path / "allowed"), "--unsafe")
    assert allowed.returncode == 0, allowed.stderr
    result = json.loads((tmp_path / "allowed" / "result.json").read_bytes())
    assert result["tier"].startswith("unsafe: ") and result["failures"] == {}


def test_doctor_says_what_is_missing() -> None:
    said = _whale("doctor")
    assert said.returncode == 1 and "none: " in said.stdout and "--unsafe" in said.stdout
