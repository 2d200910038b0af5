"""The payload of a jail's zygotes: plays one episode of a harness that is not trusted, in a confined process.

Loaded by `whale_envs.sandbox.zygote`. The first zygote loads the few files of the package that a harness needs and all
that a harness may import. One nested in it compiles a harness, without executing a line of it, and is what that
harness's episodes are forked from. So nothing that an episode leaves in memory outlives it, and nothing of one episode
or harness is ever in the memory of another. Everything that a worker sends is treated as hostile by the other side.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import random
import select
import warnings
from collections.abc import Callable
from types import CodeType
from typing import TYPE_CHECKING, Any

import msgspec

from whale_envs.errors import ToolUseError
from whale_envs.harness.helpers import ReplyView, TaskView
from whale_envs.harness.namespace import ALLOWED_IMPORTS, Run
from whale_envs.harness.wire import Channel, Gone, _go_on, fields_of, unpack

if TYPE_CHECKING:  # it would bring a dozen modules along, each page and mapping of which is copied at every fork
    from importlib.abc import MetaPathFinder

#: What the standard library imports inside functions that a harness may call, where no file can be opened any more.
LATER = """types weakref warnings copy heapq encodings.idna encodings.punycode encodings.unicode_escape
encodings.raw_unicode_escape encodings.cp1252 encodings.utf_8_sig encodings.hex_codec encodings.rot_13""".split()
#: Kept here, since a harness may put another function in its place.
_end = os._exit
#: An honest harness, to warm the code up with: a page that is written after a fork is one that has to be copied.
WARM = """
from whale_envs.harness import system, tag, tool, user

def run(task, tools):
    messages = [system("Answer."), user(f"Question: {task.question}")]
    while True:
        reply = yield messages
        if (answer := tag(reply.text, "answer")) is not None:
            return answer
        messages += [reply.message, tool("nothing")]
"""
#: Milliseconds after which a worker that nobody needs yet rehearses. Where many episodes start at once, none waits that
#: long, and to rehearse would only take processor time from them.
IDLE_MS = 100
WARM_TURNS = 16  # by then the interpreter has specialised the code and does not write to it any more


class Payload:
    """See `whale_envs.sandbox.zygote.Payload`. An episode goes on when its harness's zygote was killed."""

    outlives = True
    finders: tuple[MetaPathFinder, ...] = ()

    def __init__(self) -> None:
        for name in (*sorted(ALLOWED_IMPORTS), *LATER):
            importlib.import_module(name)
        warnings.simplefilter("ignore")  # nobody would see them
        self.channel: Any = None
        self.run: Run | None = None
        warm = compile(WARM, "warm", "exec", dont_inherit=True)
        self.play(self.new_run(warm), _Script(WARM_TURNS))
        self.rehearsal = self.new_run(warm), _Script(1)

    def specialise(self, source: str, name: str) -> None:
        """Compile a harness."""
        self.run = self.new_run(compile(source, name, "exec", dont_inherit=True))

    def new_run(self, code: CodeType) -> Run:
        """An episode that has not begun."""
        return Run(code, self.call_tool, lambda text: None)

    def call_tool(self, tool: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Have the parent call a tool."""
        try:
            self.channel.send({"tool": [tool, args, kwargs]})
            frame = self.channel.receive()
        except BaseException:  # cut off in the middle, by a full stack or memory: frames would not match any more
            _end(1)
        if "error" in frame:
            raise ToolUseError(frame["error"])
        return unpack(frame["result"])

    def live(self, fd: int, request: dict[str, Any]) -> int:
        """A child's whole life."""
        assert self.run is not None
        gc.enable()
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        if not poller.poll(IDLE_MS):
            self.play(*self.rehearsal)  # it leaves nothing but memory that is this process's own
        with contextlib.suppress(Gone):  # the parent is, or has closed its end
            self.play(self.run, Channel(fd))
        return 0

    def play(self, run: Run, channel: Channel) -> None:
        """Play one episode: answer the parent's frames until the harness has answered or failed."""
        self.channel = channel
        start = channel.receive()
        # the global one, which Python seeds anew in each child: no harness is given it, and one that gets at it all the
        # same plays the same episode again
        random.seed(start["seed"])
        run.begin(TaskView(unpack(start["shown"])), start["seed"])
        reply = None
        messages: list[dict[str, Any]] = []
        while True:
            kind, value = run.resume(reply)
            if kind != "ask":
                channel.send({kind: value})
                return
            channel.send({kind: fields_of(value, messages)})
            messages = value.messages
            text, finish_reason, tool_calls = channel.receive()
            reply = ReplyView(text, finish_reason, tuple(tool_calls))


class _Script(Channel):
    """A channel on which somebody plays along with `WARM` for so many turns."""

    def __init__(self, turns: int) -> None:
        super().__init__(-1)
        frames = [{"shown": {"dict": {"question": ""}}, "seed": 0}, *[["...", "stop", []]] * turns]
        self._frames = iter([msgspec.json.encode(frame) for frame in (*frames, ["<answer></answer>", "stop", []])])

    def send(self, frame: Any, check: Callable[[], object] = _go_on) -> None:
        """Let nobody read a frame."""
        msgspec.json.encode(frame)

    def receive(self, check: Callable[[], object] = _go_on) -> Any:
        """The next line."""
        return msgspec.json.decode(next(self._frames))
