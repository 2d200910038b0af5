"""One episode of one harness: resumed with a reply, it gives the next ask or the answer.

`Session` is the interface; `InProcessSession` runs trusted harnesses here. The jailed form, with the same
behaviour byte for byte, is `whale_envs.harness.jail`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import whale_envs.harness.helpers as helpers
from whale_envs.episode import ToolCall, ask_of
from whale_envs.errors import EpisodeError, ToolUseError
from whale_envs.harness.helpers import Ask, ReplyView, TaskView
from whale_envs.harness.load import Harness
from whale_envs.harness.namespace import load_run


@dataclass(frozen=True)
class Answer:
    """What a harness returned: a JSON value, None for no answer."""

    value: Any


class Toolbox:
    """Calls a world's tools and records the calls; `bug` keeps an exception that is ours, not the harness's."""

    def __init__(self, tools: dict[str, Callable[..., Any]]) -> None:
        self.tools = tools
        self.calls: list[ToolCall] = []
        self.asks = 0
        self.bug: Exception | None = None

    def call(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call a tool; raises `ToolUseError` for an unknown tool or a call that it does not take."""
        if name not in self.tools:
            raise ToolUseError(f"no tool {name!r}: this domain offers {', '.join(sorted(self.tools)) or 'none'}")
        start = time.perf_counter()
        try:
            result = self.tools[name](*args, **kwargs)
        except ToolUseError:
            raise
        except EpisodeError as error:
            self.bug = error
            raise
        except Exception as error:
            self.bug = error
            raise
        self.calls.append(ToolCall(name, args, kwargs, result, time.perf_counter() - start, self.asks))
        return result


class Tools:
    """What a harness holds as `tools`: attribute access gives a callable."""

    def __init__(self, call: Callable[[str, list[Any], dict[str, Any]], Any]) -> None:
        self._call = call

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args, **kwargs: self._call(name, list(args), kwargs)


class Session(ABC):
    """A harness in the middle of an episode."""

    @abstractmethod
    def resume(self, reply: ReplyView | None) -> Ask | Answer:
        """Go on with `reply` (None to start) until the next ask or the answer.

        Raises `EpisodeError` owned by the harness when it raises, yields what is no ask, or is stopped.
        """

    def close(self) -> None:
        """Drop the episode."""


class InProcessSession(Session):
    """A trusted harness, as a generator in this process."""

    def __init__(self, harness: Harness, view: TaskView, toolbox: Toolbox, seed: int) -> None:
        self._toolbox = toolbox
        self._start = lambda: load_run(harness.code, helpers, seed)(view, Tools(toolbox.call))
        self._generator: Generator[Any, ReplyView, Any] | None = None

    def resume(self, reply: ReplyView | None) -> Ask | Answer:
        """See `Session.resume`."""
        try:
            if self._generator is None:
                self._generator = self._start()
                return ask_of(next(self._generator))
            assert reply is not None
            return ask_of(self._generator.send(reply))
        except StopIteration as stop:
            return Answer(stop.value)
        except Exception as error:
            if self._toolbox.bug is not None:
                raise self._toolbox.bug from None
            raise EpisodeError("harness", f"{type(error).__name__}: {error}") from error
        finally:
            self._toolbox.asks += 1

    def close(self) -> None:
        """See `Session.close`."""
        if self._generator is not None:
            self._generator.close()
