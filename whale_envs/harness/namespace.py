"""One episode of a harness, inside whichever process runs it: its namespace, its tools, its generator.

The in-process session and the jailed worker both run `Run`, so that the same file behaves the same in both.
The worker loads it without the package around it. This is a contract, not a jail: what contains a hostile harness is
the process around it (`whale_envs.sandbox`).
"""

from __future__ import annotations

import builtins
import importlib.util
import random
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, ModuleType
from typing import Any

from whale_envs.errors import ToolUseError
from whale_envs.harness import helpers
from whale_envs.harness.helpers import ReplyView, TaskView
from whale_envs.harness.wire import Asks, failure_text, plain, plain_call

_MODULES = """__future__ re json math random statistics collections collections.abc itertools functools string textwrap
difflib unicodedata dataclasses typing html"""
ALLOWED_IMPORTS = frozenset(_MODULES.split())
#: Builtins that reach files or a terminal, or that only exist where `site` was loaded.
REMOVED_BUILTINS = frozenset(("open", "input", "breakpoint", "help", "exit", "quit", "copyright", "credits", "license"))
_BUILTINS = {name: value for name, value in vars(builtins).items() if name not in REMOVED_BUILTINS}
_OFFERED = {**{name: getattr(helpers, name) for name in helpers.__all__}, "ToolUseError": ToolUseError}

#: The code of `statistics`, whose `NormalDist.samples` draws from the `random` that the module has.
_STATISTICS = importlib.util.find_spec("statistics").loader.get_code("statistics")  # type: ignore[union-attr]

#: (tool name, positional arguments, keyword arguments) to the tool's result.
CallTool = Callable[[str, list[Any], dict[str, Any]], Any]
#: Where printed text goes.
Echo = Callable[[str], object]


class Namespace:
    """What a harness module finds around it, for one episode; what it prints goes to `echo`.

    Made before the episode is known, so that a jail can make it ahead of the process that uses it.
    """

    def __init__(self, echo: Echo) -> None:
        self._seed = 0
        self._random: ModuleType | None = None  # made when they are needed: it takes its time
        self._statistics: ModuleType | None = None
        # a module of its own, so that a harness that changes one of its names changes it for this episode only
        offered = ModuleType("whale_envs.harness")
        offered.__dict__.update(_OFFERED)

        def import_allowed(
            name: str,
            globals: Mapping[str, object] | None = None,
            locals: Mapping[str, object] | None = None,
            fromlist: Sequence[str] | None = (),
            level: int = 0,
        ) -> Any:
            if name == "whale_envs.harness" and fromlist:
                for wanted in fromlist:
                    if wanted != "*" and not hasattr(offered, wanted):  # or Python would look among loaded submodules
                        names = ", ".join(sorted(n for n in vars(offered) if not n.startswith("_")))
                        raise ImportError(f"whale_envs.harness has no {wanted!r} for a harness: it has {names}")
                return offered
            if name == "random":
                return self._own_random()
            if name == "statistics":
                if self._statistics is None:
                    self._statistics = _statistics(self._own_random())
                return self._statistics
            if level == 0 and name in ALLOWED_IMPORTS:
                return builtins.__import__(name, globals, locals, fromlist or (), level)
            allowed = ", ".join(sorted(ALLOWED_IMPORTS))
            raise ImportError(f"a harness may not import {name!r}: allowed are whale_envs.harness, {allowed}")

        def own_print(*values: object, sep: str | None = None, end: str | None = None, **_: object) -> None:
            echo((" " if sep is None else sep).join(map(str, values)) + ("\n" if end is None else end))

        self.scope = ModuleType("harness").__dict__  # registered nowhere: the next episode gets another
        # dataclasses look a class's module up in sys.modules, where "harness" is not, and builtins always is
        self.scope["__name__"] = "builtins"
        self.scope["__builtins__"] = {**_BUILTINS, "__import__": import_allowed, "print": own_print}

    def _own_random(self) -> ModuleType:
        if self._random is None:
            self._random = seeded_random(self._seed)
        return self._random

    def load(self, code: CodeType, seed: int) -> Callable[..., Any]:
        """Execute a harness module and return its `run`; `random` in it is a module of its own, seeded with `seed`."""
        self._seed = seed
        exec(code, self.scope)
        run: Callable[..., Any] = self.scope["run"]
        return run


def seeded_random(seed: int) -> ModuleType:
    """`random` for one episode: all that is in it draws from `seed`, and nothing from the system or another episode."""
    spare = random.Random(f"unseeded/{seed}")

    class Random(random.Random):
        """A generator that takes its seed from the episode's where none is given."""

        def seed(self, a: Any = None, version: int = 2) -> None:
            super().seed(spare.getrandbits(64) if a is None else a, version)

    own = Random(seed)
    module = ModuleType("random")
    module.__dict__.update({name: getattr(own, name) for name in random.__all__ if hasattr(own, name)}, Random=Random)
    return module


def _statistics(own_random: ModuleType) -> ModuleType:
    """`statistics` for one episode: what it draws comes from the episode's `random`."""
    module = ModuleType("statistics")
    exec(_STATISTICS, module.__dict__)
    module.__dict__["random"] = own_random
    return module


class Tools:
    """What a harness holds as `tools`: attribute access gives a callable."""

    def __init__(self, call: CallTool) -> None:
        self._call = call

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)

        send, what = self._call, f"what {name} was called with"

        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                args_sent, kwargs_sent = plain_call(args, kwargs, what)
            except ValueError as error:
                raise ToolUseError(str(error)) from None
            return send(name, args_sent, kwargs_sent)

        self.__dict__[name] = call  # the next access finds it at once
        return call


class Run:
    """An episode's generator. Nothing that the harness raises comes out of it, but for `KeyboardInterrupt`.

    Made before the episode is known, like its `Namespace`.
    """

    def __init__(self, code: CodeType, call: CallTool, echo: Echo) -> None:
        self._code, self._tools, self._namespace = code, Tools(call), Namespace(echo)
        self._view, self._seed = TaskView({}), 0
        self._generator: Any = None
        self._asks = Asks()

    def begin(self, view: TaskView, seed: int) -> None:
        """Say which episode it is, before `resume`."""
        self._view, self._seed = view, seed

    def resume(self, reply: ReplyView | None) -> tuple[str, Any]:
        """Go on with `reply` (None to start): ("ask", `Ask`), ("answer", JSON value) or ("fail", message)."""
        try:
            try:
                if self._generator is None:
                    run = self._namespace.load(self._code, self._seed)
                    self._generator = run(self._view, self._tools)
                    return "ask", self._asks.next(next(self._generator))
                return "ask", self._asks.next(self._generator.send(reply))
            except StopIteration as stop:
                return "answer", plain(stop.value, "the answer")
        except KeyboardInterrupt:  # a person's Ctrl-C
            raise
        except BaseException as error:  # SystemExit and GeneratorExit too: the harness's doing, not ours
            return "fail", failure_text(error)

    def close(self) -> None:
        """End the generator. What its `finally` blocks do and raise is dropped: the episode's record is complete."""
        try:
            if self._generator is not None:
                self._generator.close()
        except KeyboardInterrupt:
            raise
        except BaseException:
            pass
        else:  # functions and their namespace hold each other: taken apart, they leave now and not when it is tidied up
            self._namespace.scope.clear()
        vars(self._tools).clear()
        self._generator = None
