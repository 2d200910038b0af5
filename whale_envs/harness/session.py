"""One episode of one harness: resumed with a reply, it gives the next ask or the answer.

`Session` is the interface; `InProcessSession` runs trusted harnesses here. The jailed form, with the same
behaviour byte for byte, is `whale_envs.harness.jail`.
"""

from __future__ import annotations

import inspect
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import msgspec

from whale_envs.episode import ToolCall
from whale_envs.errors import EpisodeError, ToolUseError
from whale_envs.harness.helpers import Ask, ReplyView, TaskView
from whale_envs.harness.load import Harness
from whale_envs.harness.namespace import Run
from whale_envs.harness.results import two_copies
from whale_envs.harness.wire import clean

#: Most tool calls that a harness may make between two model calls, misuses among them.
MAX_TOOL_CALLS = 64


class Answer(msgspec.Struct, frozen=True):
    """What a harness returned: a JSON value, None for no answer."""

    value: Any


class Toolbox:
    """Calls a world's tools and records every call, those that are refused and those that fail among them.

    `raised` keeps what ends the episode whatever the harness makes of it: an `EpisodeError`, or a bug of ours. After
    the end it refuses what a harness still calls while it is closed.
    """

    def __init__(self, tools: dict[str, Callable[..., Any]]) -> None:
        self.tools = tools
        self.calls: list[ToolCall] = []
        self.asks = 0
        self.raised: Exception | None = None
        self._since_ask = 0

    def next_ask(self) -> None:
        """A model call has been answered: calls from now on come after it."""
        self.asks += 1
        self._since_ask = 0

    def call(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call a tool with JSON values; returns its result as a copy that the harness may change.

        Raises `ToolUseError` for an unknown tool or a call that it does not take. Anything else that it raises
        ends the episode.
        """
        if self.raised is not None:
            raise self.raised
        self._since_ask += 1
        kept, seconds, said = None, 0.0, "it was broken off"
        try:
            if self._since_ask > MAX_TOOL_CALLS:
                raise EpisodeError("harness", f"made more than {MAX_TOOL_CALLS} tool calls between two model calls")
            tool = self.tools.get(name)
            if tool is None:
                offered = ", ".join(sorted(self.tools)) or "none"
                name = clean(name[:80])
                raise ToolUseError(f"no tool {name!r}: this domain offers {offered}")
            start = time.perf_counter()
            try:
                result = tool(*args, **kwargs)
            except TypeError:  # raised by the call itself or in the tool: its signature says which
                _check_arguments(tool, name, args, kwargs)
                raise
            finally:
                seconds = time.perf_counter() - start
            try:
                kept, given = two_copies(result, f"the result of {name}")
            except ValueError as error:
                raise EpisodeError("tool", str(error)) from None
            said = ""
        except ToolUseError as error:
            misuse = ToolUseError(clean(str(error)))
            said = str(misuse) or "it was refused"
            raise misuse from None
        except Exception as error:
            said = clean(str(error)) or type(error).__name__
            self.raised = error
            raise
        finally:
            self.calls.append(ToolCall(name, args, kwargs, kept, seconds, self.asks, said))
        return given


def _check_arguments(tool: Callable[..., Any], name: str, args: list[Any], kwargs: dict[str, Any]) -> None:
    """`ToolUseError` says why a tool does not take the arguments."""
    try:
        inspect.signature(tool).bind(*args, **kwargs)
    except TypeError as error:
        raise ToolUseError(f"{name}: {error}") from None


class Session(ABC):
    """A harness in the middle of an episode."""

    def __init__(self, toolbox: Toolbox) -> None:
        self._toolbox = toolbox

    def resume(self, reply: ReplyView | None) -> Ask | Answer:
        """Go on with `reply` (None to start) until the next ask or the answer.

        Raises `EpisodeError` owned by the harness when it raises, yields what is no ask, or is stopped, and
        whatever a tool raised that was not a misuse.
        """
        toolbox = self._toolbox
        if reply is not None:
            toolbox.next_ask()
        kind, value = self._run(reply)
        if toolbox.raised is not None:
            raise toolbox.raised
        if kind == "fail":
            raise EpisodeError("harness", value)
        return value if isinstance(value, Ask) else Answer(value)

    @abstractmethod
    def _run(self, reply: ReplyView | None) -> tuple[str, Any]:
        """What `whale_envs.harness.namespace.Run.resume` gives."""

    @abstractmethod
    def close(self) -> None:
        """Drop the episode. May be called again."""


class InProcessSession(Session):
    """A trusted harness, as a generator in this process; `shown` is what it sees of the task."""

    def __init__(self, harness: Harness, shown: dict[str, Any], toolbox: Toolbox, seed: int) -> None:
        super().__init__(toolbox)
        self._episode = Run(harness.code, toolbox.call, _echo)
        self._episode.begin(TaskView(two_copies(shown, "a task")[1]), seed)

    def _run(self, reply: ReplyView | None) -> tuple[str, Any]:
        return self._episode.resume(reply)

    def close(self) -> None:
        """See `Session.close`."""
        self._toolbox.raised = self._toolbox.raised or ToolUseError("the episode has ended")
        self._episode.close()


def _echo(text: str) -> None:
    """Print what a harness prints, whatever the terminal's encoding."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
