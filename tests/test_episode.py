"""Episodes as people read them, and as they lie on disk."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path

import pytest

from whale_envs import Episode, EpisodeError, Reply, ToolUseError, UserError, Verdict, read_episodes, write_episodes
from whale_envs.episode import Call, Failure, ToolCall, write_atomic
from whale_envs.harness.helpers import Passage, system, user


def episode() -> Episode:
    first = [system("Be brief."), user("Who?")]
    second = [*first, Reply("<search>x</search>").view().message, {"role": "tool", "content": "X is Y."}]
    return Episode(
        "t1",
        "toy",
        "abc",
        7,
        calls=[
            Call(first, Reply("<search>x</search>", prompt_ids=[1, 2], completion_ids=[3], logprobs=[-0.5])),
            Call(second, Reply("<answer>Y", "length"), max_tokens=5),
        ],
        tool_calls=[ToolCall("search", ["x"], {"k": 1}, [Passage("1", "X", "X is Y.", 1.0)], 0.1, 1)],
        answer="Y",
        verdict=Verdict(1.0, "exact match"),
        behaviours={"searched": True},
        seconds=1.5,
    )


def test_a_transcript_shows_each_message_once() -> None:
    text = episode().transcript()
    for once in ("[system] Be brief.", "[user] Who?", "[tool] X is Y.", "(cut off by the token cap)", "score 1"):
        assert text.count(once) == 1
    assert "fresh context" not in text
    assert text.count("<search>") == 1


def test_a_transcript_tells_a_fresh_context_and_a_failure() -> None:
    shown = episode()
    shown.calls.append(Call([user("Another try.")], Reply("hm")))
    shown.failure = Failure("harness", "ValueError: x")
    text = shown.transcript()
    assert text.count("--- a fresh context ---") == 1
    assert "failure (harness): ValueError: x" in text


def test_episodes_come_back_from_disk(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "episodes.jsonl"
    write_episodes(path, [episode(), episode()])
    first, second = read_episodes(path)
    assert first == second
    assert first.calls == episode().calls and first.verdict == episode().verdict and first.truncated
    assert first.tool_calls[0].result == [{"id": "1", "title": "X", "text": "X is Y.", "score": 1.0}]
    write_episodes(tmp_path / "again.jsonl", [first])
    assert path.read_bytes().splitlines()[0] + b"\n" == (tmp_path / "again.jsonl").read_bytes()


@pytest.mark.parametrize("line", [b"{", b"[]", b'{"task_id": 1}', b"\xff", b'{"task_id": "a"}'])
def test_a_malformed_line_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "episodes.jsonl"
    write_episodes(path, [episode()])
    path.write_bytes(path.read_bytes() + line + b"\n")
    with pytest.raises(UserError, match=r"episodes\.jsonl:2 is damaged"):
        list(read_episodes(path))


def test_a_write_that_fails_leaves_the_old_file_and_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    write_atomic(path, b"old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left on device; free some space"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old" and [p.name for p in tmp_path.iterdir()] == ["f"]


def test_errors_pass_between_processes() -> None:
    for error in (EpisodeError("tool", "gone", 0.5), UserError("x"), ToolUseError("x")):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_errors_have_owners() -> None:
    assert EpisodeError("tool", "down").owner == "tool"
    assert isinstance(ToolUseError("x"), ValueError)  # so that a harness may catch it without importing it
