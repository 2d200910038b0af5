"""`whale audit`: a table, an exit code and a result for programs; a harness that is no file is one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from whale_envs.harness.load import load_harness
from whale_train import cli
from whale_train.policies import load
from whale_train.policies.scripted import ScriptedPolicy

#: A harness of five lines that returns what the passage says, whatever the model does.
CHEAT = """
from whale_envs.harness import user
def run(task, tools):
    yield [user(task.question)]
    return tools.search(task.question)[0].text
"""


@pytest.fixture(autouse=True)
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ScriptedPolicy:
    """A small data set, and a policy that answers "x"."""
    monkeypatch.chdir(tmp_path)
    rows = [
        {"id": f"row-{i}", "question": f"What is near the river number {i}?", "answers": [f"Town {i}"]}
        for i in range(40)
    ]
    Path("q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = [{"id": str(i), "title": f"River {i}", "text": f"Town {i}"} for i in range(40)]
    Path("c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found))
    policy = ScriptedPolicy(lambda request: "<answer>x</answer>")
    monkeypatch.setattr(load, "load_policy", lambda *args: policy)
    Path("cheat.py").write_text(CHEAT)
    return policy


ARGV = ["--dataset", "q.jsonl,corpus=c.jsonl", "--tasks", "4", "--out", "run"]


def test_a_cheat_is_named_layer_by_layer_and_the_exit_code_says_so(
    capsys: pytest.CaptureFixture[str], world: ScriptedPolicy
) -> None:
    assert cli.main(["audit", "cheat.py", *ARGV]) == 1
    said = capsys.readouterr().out
    result = json.loads(Path("run/result.json").read_bytes())
    caught = {layer["layer"] for layer in result["layers"] if layer["findings"]}
    assert "provenance" in caught and not result["passed"]
    assert [layer["layer"] for layer in result["layers"]] == [
        "static", "contract", "provenance", "isolation", "null model", "canary"
    ]  # fmt: skip
    assert "caught  provenance" in said and "cheat.py: caught" in said and said.splitlines()[-1] == "run"
    assert len(said.splitlines()) > 8 and "Traceback" not in said
    asked = len(world.requests)
    assert cli.main(["audit", "cheat.py", *ARGV]) == 1
    assert capsys.readouterr().out == said and len(world.requests) == asked, "read back, not played again"


def test_what_is_contained_is_said_and_no_reason_to_refuse(capsys: pytest.CaptureFixture[str]) -> None:
    source = load_harness("strong", "search-qa").source
    notes = "SEEN = []\ndef run(task, tools):\n    SEEN.append(task)\n    return (yield from honest(task, tools))\n"
    Path("notes.py").write_text(source.replace("def run(", "def honest(") + notes)
    assert cli.main(["audit", "notes.py", *ARGV]) == 0
    said = capsys.readouterr().out
    assert "contained  " in said and "keeps notes in SEEN" in said and "notes.py: passed" in said


def test_an_honest_harness_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["audit", "strong", *ARGV]) == 0
    said = capsys.readouterr().out
    assert "caught" not in said and "strong: passed" in said
    assert json.loads(Path("run/result.json").read_bytes())["passed"] is True


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["audit"], "HARNESS"),
        (["audit", "stong"], "did you mean 'strong'?"),
        (["audit", "nowhere.py"], "cannot read harness nowhere.py"),
        (["audit", "strong", "--domain", "ches"], "did you mean 'chess'?"),
        (["audit", "strong", "--tasks", "0"], "--tasks 0: expected more than 0"),
    ],
)
def test_a_mistake_is_one_line(capsys: pytest.CaptureFixture[str], argv: list[str], expected: str) -> None:
    assert cli.main(argv) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and expected in lines[0]
