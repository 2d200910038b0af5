"""What a harness may import: `from whale_envs.harness import system, user, tool, tag, boxed, ...`.

Only the standard library is used here, since a jailed worker loads this file alone, without the rest of the
package. A harness is one file with one generator function:

    def run(task, tools):
        reply = yield [user(task.question)]      # a model call
        found = tools.search("...", k=1)         # a tool call
        return tag(reply.text, "answer")         # the answer

Its episodes are the same in every process: what it draws comes from the episode's seed. One thing is left to it: the
order of a set of strings, and `hash()` of one, differ from process to process (jailed they happen to be fixed), so a
set is sorted before it reaches a message or an answer. `whale audit` plays under two orders and says where that fails.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from typing import Any

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

Message = dict[str, Any]
_WORD = re.compile(r"\w+")
_BREAK = re.compile(r"(?<=[.!?])\s+|\n+")


def system(text: str) -> Message:
    """A system message."""
    return {"role": "system", "content": text}


def user(text: str) -> Message:
    """A user message."""
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    """An assistant message that the model did not write in this episode (a few-shot example, say)."""
    return {"role": "assistant", "content": text}


def tool(text: str) -> Message:
    """A tool's result."""
    return {"role": "tool", "content": text}


def tag(text: str, name: str) -> str | None:
    """The content of the last `<name>...</name>` in `text`, stripped; None if there is none."""
    # not a regular expression: each episode of a jailed harness would have to compile its own
    closing = f"</{name}>"
    end = text.rfind(closing)
    if end < 0:
        return None
    start = text.rfind(f"<{name}>", 0, end)
    if start < 0:
        return None
    start += len(name) + 2
    return text[start : text.index(closing, start)].strip()


def boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{...}` in `text`, braces balanced; None if there is none."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth, begin = 1, start + len("\\boxed{")
    end = text.find("}", begin)
    if "{" not in text[begin : max(end, begin)]:
        return text[begin:end].strip() if end >= 0 else None
    for at in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[begin:at].strip()
    return None


def words(text: str) -> list[str]:
    """The lower-cased words of `text`."""
    return _WORD.findall(text.lower())


@dataclass(frozen=True, init=False)
class Ask:
    """One model call: `messages` with, when wanted, tool schemas and caps.

    `max_tokens` caps the completion (None: what the domain allows); `stop` are strings that end it.
    """

    messages: list[Message]
    tools: list[dict[str, Any]] | None
    max_tokens: int | None
    stop: tuple[str, ...]
    template_kwargs: dict[str, Any]

    def __init__(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]] | None = None,
        max_tokens: int | None = None,
        stop: tuple[str, ...] = (),
        template_kwargs: dict[str, Any] | None = None,
    ) -> None:
        fields = self.__dict__  # every step makes one, and what `dataclass` writes here takes four times as long
        fields["messages"], fields["tools"], fields["max_tokens"], fields["stop"] = messages, tools, max_tokens, stop
        fields["template_kwargs"] = {} if template_kwargs is None else template_kwargs


@dataclass(frozen=True, init=False)
class ReplyView:
    """What a harness sees of a model's reply. `finish_reason` is "stop" or "length"."""

    text: str
    finish_reason: str
    tool_calls: tuple[dict[str, Any], ...]

    def __init__(self, text: str, finish_reason: str = "stop", tool_calls: tuple[dict[str, Any], ...] = ()) -> None:
        fields = self.__dict__  # as in `Ask`
        fields["text"], fields["finish_reason"], fields["tool_calls"] = text, finish_reason, tool_calls

    @property
    def message(self) -> Message:
        """The reply as the assistant message to append to the history."""
        message: Message = {"role": "assistant", "content": self.text}
        if self.tool_calls:
            message["tool_calls"] = list(self.tool_calls)
        return message


class TaskView:
    """What a harness sees of a task: the shown fields as attributes (`task.question`), never the answer."""

    def __init__(self, shown: dict[str, Any]) -> None:
        self.__dict__.update(shown)

    def __repr__(self) -> str:
        return f"TaskView({self.__dict__!r})"


@dataclass(frozen=True)
class Passage:
    """A retrieved passage; `text` may hold several lines or sentences."""

    id: str
    title: str
    text: str
    score: float = 0.0

    def head(self, n: int) -> str:
        """The title and the first `n` words of the text, lines kept."""
        return _head(self.title, self.text, n)

    def sentences(self) -> list[str]:
        """The text as sentences, in order."""
        return [sentence for sentence, _ in _sentences(self.text)]

    def snippets(self, query: str, n: int) -> str:
        """The title and the `n` sentences that share most words with `query`, in the passage's order."""
        wanted, sentences = set(words(query)), _sentences(self.text)
        shared = [len(wanted & found) for _, found in sentences]
        best = sorted(range(len(sentences)), key=shared.__getitem__, reverse=True)[:n]  # stable: of equals the first
        return "\n".join([self.title, *(sentences[at][0] for at in sorted(best))])


# the rollouts of a group find the same passages, and show the same of them
@functools.lru_cache(maxsize=1024, typed=True)
def _head(title: str, text: str, n: int) -> str:
    kept: list[str] = []
    for line in text.splitlines():
        if n <= 0:
            break
        found = line.split()
        kept.append(" ".join(found[:n]))
        n -= len(found)
    return "\n".join([title, *kept])


@functools.lru_cache(maxsize=1024, typed=True)
def _sentences(text: str) -> tuple[tuple[str, frozenset[str]], ...]:
    """The sentences of a text, each with its words."""
    return tuple((s, frozenset(words(s))) for s in map(str.strip, _BREAK.split(text)) if s)


@dataclass(frozen=True)
class ExecResult:
    """The result of running code: `status` is "ok", "error", "timeout", "memory", "output" or "killed"."""

    stdout: str
    stderr: str
    status: str
    seconds: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class BoardView:
    """A chess position as the player sees it.

    `legal` pairs every legal move in UCI with its SAN, in a fixed order that says nothing of their worth;
    `over` is True when the puzzle has ended, after which no move is accepted.
    """

    fen: str
    board: str
    legal: tuple[tuple[str, str], ...]
    over: bool = False
    ply: int = 0


#: How a tool's result is rebuilt from JSON on the other side of a jail, by the name that it travels under.
RESULT_TYPES: dict[str, type] = {c.__name__: c for c in (Passage, ExecResult, BoardView)}
