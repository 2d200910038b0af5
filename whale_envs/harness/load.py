"""Finding and checking a harness: by name ("h0", "strong"), by path, from source, or from a function."""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
import threading
import warnings
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any

from whale_envs.errors import UserError, unknown

#: Longest source of a harness, in characters.
MAX_SOURCE = 200_000
SEEDS = Path(__file__).parent / "seeds"
#: All threads share the list of warnings, and in CPython 3.11 the counter by which a syntax tree's depth is checked.
_one_at_a_time = threading.Lock()


class HarnessSourceError(UserError):
    """A harness's source breaks the contract: it does not parse, or has no generator function `run`."""


@dataclass(frozen=True)
class Harness:
    """A harness's source, its name, and the first 12 hex digits of its SHA-256.

    `trusted` harnesses run in this process, others in a jailed child.
    """

    source: str
    name: str = "harness"
    trusted: bool = False
    hash: str = field(init=False)
    code: CodeType = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "code", _check(self.source, self.name))
        object.__setattr__(self, "hash", hashlib.sha256(self.source.encode()).hexdigest()[:12])

    def __reduce__(self) -> Any:  # a code object cannot be pickled, the source can
        return Harness, (self.source, self.name, self.trusted)


def _check(source: str, name: str) -> CodeType:
    if len(source) > MAX_SOURCE:
        raise HarnessSourceError(f"harness {name} has {len(source):,} characters: expected at most {MAX_SOURCE:,}")
    try:
        with _one_at_a_time, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "\\d" in a plain string is no reason to refuse a harness
            tree = ast.parse(source, filename=name)
            code = compile(tree, name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        where = f" at line {line}" if line else ""
        raise HarnessSourceError(
            f"harness {name} does not parse{where}: {getattr(error, 'msg', error)}; mend the file"
        ) from None
    run = run_of(tree, name)
    if len(run.args.args) != 2:
        raise HarnessSourceError(f"harness {name}: `run` takes (task, tools), not {len(run.args.args)} arguments")
    if not any(_yields(n) for n in run.body):
        raise HarnessSourceError(
            f"harness {name}: `run` never yields; `reply = yield messages` is how it asks the model"
        )
    return code


def run_of(tree: ast.Module, name: str = "harness") -> ast.FunctionDef:
    """The one definition of `run` in a harness's syntax tree: what is read is what runs.

    Raises `HarnessSourceError` where there is none at the top level, or where something else has its name, too.
    """
    runs = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "run"]
    if not runs:
        raise HarnessSourceError(f"harness {name} has no function `run(task, tools)`: define one at the top level")
    again = next((n for n in _of_the_module(tree) if n is not runs[0] and "run" in _binds(n)), None)
    if again is not None:
        where = f"line {getattr(again, 'lineno', runs[0].lineno)}"
        raise HarnessSourceError(
            f"harness {name}: {where} defines `run` again: expected one definition, rename the rest"
        )
    return runs[0]


def _of_the_module(tree: ast.Module) -> Iterator[ast.AST]:
    """The nodes whose names are the module's, and `global` statements wherever they are."""
    waiting: list[tuple[ast.AST, bool]] = [(node, True) for node in tree.body]
    while waiting:  # no recursion: a source may nest deeper than Python's stack
        node, outside = waiting.pop()
        if outside or isinstance(node, ast.Global):
            yield node
        outside = outside and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef)
        waiting += [(inner, outside) for inner in ast.iter_child_nodes(node)]


def _binds(node: ast.AST) -> Collection[str]:
    """The names that a statement or expression gives a meaning, or takes it from."""
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            return (name,)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return (name,)
        case ast.alias(name=name, asname=other):
            return (other or name.partition(".")[0],)
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            return (name,)
        case ast.MatchMapping(rest=str(name)):
            return (name,)
        case ast.Global(names=names):
            return names
    return ()


def _yields(node: ast.AST) -> bool:
    """Whether `node` holds a yield of its own function, not of one nested in it."""
    waiting = [node]  # no recursion: a source may nest deeper than Python's stack
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef | ast.GeneratorExp):
            waiting.extend(ast.iter_child_nodes(node))
    return False


def seed_names(domain: str) -> list[str]:
    """The names of the harnesses that ship for a domain ("h0", "strong")."""
    prefix = domain.replace("-", "_") + "_"
    return sorted(p.stem.removeprefix(prefix) for p in SEEDS.glob(f"{prefix}*.py"))


def load_harness(spec: str | Path | Harness | Callable[..., Any], domain: str, trusted: bool = True) -> Harness:
    """The harness that `spec` names: a shipped name, a path to a .py file, "module:attribute", a function, a `Harness`.

    Raises `UserError` for a name that does not ship or a file or module that is not there, `HarnessSourceError` for
    source that breaks the contract.
    """
    if isinstance(spec, str) and ":" in spec and not spec.endswith(".py"):
        spec = _attribute(spec)
    if isinstance(spec, Harness):
        return spec
    if callable(spec):
        module = inspect.getmodule(spec)
        if module is None or getattr(spec, "__name__", "") != "run":
            raise UserError(f"harness function {spec!r}: expected the `run` of a module; give its file's path instead")
        return Harness(inspect.getsource(module), module.__name__, trusted)
    if not isinstance(spec, str | Path):
        raise UserError(f"harness {spec!r:.80}: expected a name, a path, a function `run`, or a Harness")
    path = Path(spec)
    if str(spec) in seed_names(domain):
        path = SEEDS / f"{domain.replace('-', '_')}_{spec}.py"
        return Harness(path.read_text(encoding="utf-8"), str(spec), trusted)
    if path.suffix != ".py":
        raise unknown(f"harness of {domain}", str(spec), [*seed_names(domain), "FILE.py"])
    try:
        return Harness(path.read_text(encoding="utf-8"), path.stem, trusted)
    except (OSError, ValueError) as error:  # the latter for bytes that are no text, and for a zero byte in the path
        why = (
            "it is no text in UTF-8"
            if isinstance(error, UnicodeDecodeError)
            else getattr(error, "strerror", str(error))
        )
        raise UserError(f"cannot read harness {path}: {why}; expected a Python file with `run(task, tools)`") from None


def _attribute(spec: str) -> Any:
    """What "module:attribute" names."""
    module, _, name = spec.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:  # the module is the user's, and may raise anything
        raise UserError(
            f"cannot import harness {spec!r} ({type(error).__name__}: {error}): expected module:attribute"
        ) from error
