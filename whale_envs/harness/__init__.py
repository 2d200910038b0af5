"""Harnesses: the helpers that one may import, and how one is loaded and run."""

from whale_envs.harness.helpers import (
    Ask,
    BoardView,
    ExecResult,
    Message,
    Passage,
    ReplyView,
    TaskView,
    assistant,
    boxed,
    system,
    tag,
    tool,
    user,
    words,
)

__all__ = [
    "Ask",
    "BoardView",
    "ExecResult",
    "Message",
    "Passage",
    "ReplyView",
    "TaskView",
    "assistant",
    "boxed",
    "system",
    "tag",
    "tool",
    "user",
    "words",
]
