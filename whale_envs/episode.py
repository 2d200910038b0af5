"""The record of an episode: every ask and reply, every tool call, the verdict. One JSON line each."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeVar

import msgspec
from zstandard import ZstdCompressor, ZstdDecompressor, ZstdError

from whale_envs.errors import Owner, UserError
from whale_envs.harness.helpers import Ask, Message, ReplyView

T = TypeVar("T")
#: What the decoder says of bytes that are not what they should be.
_MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
#: What helps where a file is made again.
_REMEDY = "remove the file, and the same command goes on without it"

FinishReason = Literal["stop", "length"]
#: A score above this is a right answer (arXiv 2609.00196, section on RSFT).
SOLVED = 0.5


class Reply(msgspec.Struct, frozen=True):
    """A model's reply as a policy returns it.

    `prompt_ids` and `completion_ids` are the token ids that were in the model's context and that it sampled (the
    turn-ending token among them), `logprobs` the sampled tokens' log-probabilities; all None from a policy that
    does not know them. `counted` are the prompt and completion tokens as a service counts them that does not show them,
    and `dollars` what it asked for the call. `tool_calls` are `{"name": ..., "arguments": {...}}`.
    """

    text: str
    finish_reason: FinishReason = "stop"
    tool_calls: list[dict[str, Any]] = []
    prompt_ids: list[int] | None = None
    completion_ids: list[int] | None = None
    logprobs: list[float] | None = None
    counted: tuple[int, int] | None = None
    dollars: float = 0.0

    def view(self) -> ReplyView:
        """What a harness sees of it."""
        return ReplyView(self.text, self.finish_reason, tuple(self.tool_calls))

    def said(self) -> str:
        """The text for people, with the calls that a service gives apart from it."""
        apart = self.tool_calls if "<tool_call>" not in self.text else []
        return "\n".join([self.text, *map(_json, apart)])


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _brief(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:120]}…"


def _went_alike(one: msgspec.Struct, other: object) -> bool:
    """Whether two records are equal but for `seconds` and `dollars`: what a thing took is no part of what happened."""
    return type(one) is type(other) and all(
        getattr(one, f) == getattr(other, f) for f in one.__struct_fields__ if f not in ("seconds", "dollars")
    )


class ToolCall(msgspec.Struct, frozen=True, eq=False, omit_defaults=True):
    """A tool call that a harness made, after model call number `after` (0: before the first).

    `error` is what the tool said in place of a result, which is None then: it refused the call, or failed at it.
    """

    name: str
    args: list[Any]
    kwargs: dict[str, Any]
    result: Any
    seconds: float
    after: int
    error: str = ""

    def __eq__(self, other: object) -> bool:
        return _went_alike(self, other)

    def written(self) -> str:
        """The call as a harness writes it, with its arguments as JSON."""
        given = [*map(_json, self.args), *(f"{name}={_json(value)}" for name, value in self.kwargs.items())]
        return f"{self.name}({', '.join(given)})"


class Call(msgspec.Struct, frozen=True, omit_defaults=True):
    """One model call."""

    messages: list[Message]
    reply: Reply
    max_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    template_kwargs: dict[str, Any] = {}
    stop: tuple[str, ...] = ()

    def ask(self) -> Ask:
        """What the harness asked for."""
        return Ask(self.messages, self.tools, self.max_tokens, self.stop, self.template_kwargs)


class Verdict(msgspec.Struct, frozen=True, eq=False, omit_defaults=True):
    """What the verifier says: `score` in [0, 1], why, and the dollars that asking a judge model cost."""

    score: float
    reason: str
    dollars: float = 0.0

    def __eq__(self, other: object) -> bool:
        return _went_alike(self, other)


class Failure(msgspec.Struct, frozen=True):
    """Why an episode ended before its verdict, and whose fault it was."""

    owner: Owner
    message: str


class Turn(msgspec.Struct, frozen=True):
    """A stretch of an episode: what tools were called, what the model then saw that it had not, what it replied.

    `fresh`: the messages do not go on from the turn before. The last turn of an episode has neither messages nor reply.
    """

    tools: list[ToolCall]
    fresh: bool
    messages: list[Message]
    reply: Reply | None


class Episode(msgspec.Struct, eq=False):
    """A finished episode. `behaviours` are the domain's yes/no facts about it (True counts as 1 in a mean)."""

    task_id: str
    domain: str
    harness: str
    seed: int
    weights: str = ""
    calls: list[Call] = []
    tool_calls: list[ToolCall] = []
    answer: Any = None
    verdict: Verdict = Verdict(0.0, "not finished")
    behaviours: dict[str, bool] = {}
    failure: Failure | None = None
    seconds: float = 0.0

    def __eq__(self, other: object) -> bool:
        return _went_alike(self, other)

    @property
    def score(self) -> float:
        """The verdict's score."""
        return self.verdict.score

    @property
    def solved(self) -> bool:
        """Whether the verifier accepts its answer."""
        return self.score > SOLVED

    @property
    def truncated(self) -> bool:
        """Whether any model call was cut off by a token cap."""
        return "length" in [call.reply.finish_reason for call in self.calls]

    def turns(self, waiting: list[Message] | None = None) -> Iterator[Turn]:
        """The episode in order, each message once; `waiting` is an ask that has no reply yet."""
        shown: list[Message] = []
        for number, call in enumerate([*self.calls, None]):
            tools = [t for t in self.tool_calls if t.after == number]
            messages = call.messages if call else waiting
            if messages is None:
                yield Turn(tools, False, [], None)
                return
            same = len(shown) if messages[: len(shown)] == shown else 0
            yield Turn(tools, bool(shown) and not same, messages[same:], call.reply if call else None)
            shown = [*messages, call.reply.view().message] if call else []

    def transcript(self, waiting: list[Message] | None = None) -> str:
        """The episode as a person reads it: each message once, then answer and verdict; `waiting` as in `turns`."""
        lines = [f"task {self.task_id} · harness {self.harness} · seed {self.seed}"]
        for turn in self.turns(waiting):
            lines += [f"[{c.name} failed] {_brief(c.written())}: {c.error}" for c in turn.tools if c.error]
            if turn.fresh:
                lines.append("--- a fresh context ---")
            lines += [f"[{m['role']}] {m['content']}" for m in turn.messages]
            if turn.reply:
                cut = "  (cut off by the token cap)" if turn.reply.finish_reason == "length" else ""
                lines.append(f"[assistant] {turn.reply.said()}{cut}")
        if self.failure:
            lines.append(f"failure ({self.failure.owner}): {self.failure.message}")
        lines.append(f"answer {self.answer!r} · score {self.score:g} · {self.verdict.reason}")
        return "\n".join(lines)


def write_episodes(path: Path, episodes: Iterable[Episode]) -> None:
    """Write episodes as JSON lines, atomically; packed by zstandard where the name ends in .zst."""
    encode = msgspec.json.Encoder().encode
    lines = b"".join(encode(e) + b"\n" for e in episodes)
    write_atomic(path, ZstdCompressor(write_checksum=True).compress(lines) if path.suffix == ".zst" else lines)


def read_episodes(path: Path) -> Iterator[Episode]:
    """Read episodes from JSON lines; `UserError` names the line that is malformed."""
    return read_json_lines(path, Episode)


def read_json_lines(path: Path, kind: type[T]) -> Iterator[T]:
    """What was written as JSON lines, unpacked where the name ends in .zst. Raises `UserError` that names a line which
    was cut or changed since."""
    decoder = msgspec.json.Decoder(kind)
    with _unpacked(path) if path.suffix == ".zst" else _opened(path) as lines:
        for number, line in enumerate(lines, 1):
            try:
                yield decoder.decode(line)
            except _MALFORMED as error:
                raise _damaged(f"{path}:{number}", error) from None


def _unpacked(path: Path) -> BytesIO:
    """What a file of one frame of zstandard holds, whose length and checksum the frame states."""
    try:
        return BytesIO(ZstdDecompressor().decompress(path.read_bytes(), allow_extra_data=False))
    except (ZstdError, IsADirectoryError) as error:
        raise _damaged(str(path), error) from None


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except IsADirectoryError as error:
        raise _damaged(str(path), error) from None


def read_json(path: Path, kind: type[T], remedy: str = _REMEDY) -> T:
    """What `write_atomic` wrote as JSON. Raises `UserError` for a file that was cut or changed since, which says what
    is to be done: `remedy`."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (*_MALFORMED, IsADirectoryError) as error:
        raise _damaged(str(path), error, remedy) from None


def _damaged(place: str, error: Exception, remedy: str = _REMEDY) -> UserError:
    why = error.strerror if isinstance(error, OSError) else error
    return UserError(f"{place} is damaged ({why}): {remedy}")


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file so that it is either whole or not there, whenever the process dies."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError as error:
        with contextlib.suppress(OSError):  # where no draft could be made, none can be removed
            draft.unlink()
        raise UserError(
            f"cannot write {path}: {error.strerror}; free some space or give another --out, "
            "then run the same command again"
        ) from error
