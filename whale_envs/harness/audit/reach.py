"""What a harness's source reaches for: modules, files, dynamic code, the insides of the interpreter.

The jail contains all of it. That a harness tries is reason enough to refuse it, and reading the source costs a
millisecond.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections import Counter
from collections.abc import Iterator
from types import ModuleType

from whale_envs.harness import helpers
from whale_envs.harness.audit.finding import Finding
from whale_envs.harness.audit.syntax import fold, found
from whale_envs.harness.namespace import ALLOWED_IMPORTS, REMOVED_BUILTINS

#: Builtins that make code or look around at run time.
DYNAMIC = frozenset(("eval", "exec", "compile", "__import__", "globals", "locals", "vars"))
#: Builtins that take an attribute's name; a computed one can be any.
BY_NAME = frozenset(("getattr", "setattr", "delattr", "hasattr"))
#: What evaluates strings, or looks up attributes that a string names, in modules that a harness may import.
EVALUATING = frozenset(("Formatter", "get_type_hints", "ForwardRef", "evaluate_forward_ref"))
#: Methods of strings that look up the attributes that the string names.
FORMATTING = frozenset(("format", "format_map", "vformat"))
#: Names with two underscores that a plain program has a use for.
PLAIN_DUNDERS = frozenset(("__init__", "__post_init__", "__name__", "__doc__"))
#: Attributes of generators, frames, tracebacks and code objects, which lead out of a namespace.
_FRAMES = re.compile(
    r"(gi|cr|ag|f|tb|co)_(frame|code|back|locals|globals|builtins|next|consts|names|varnames|freevars|yieldfrom|await)"
)
_DUNDER = re.compile(r"__[a-zA-Z]+__")
_SYSTEM_PATH = re.compile(r"(?<![\w.])/(proc|sys|etc|dev)/")
#: Most characters without a space in a string, and most decimal digits of an integer: beyond, it is data in disguise.
MAX_RUN, MAX_DIGITS = 256, 40


def reach(tree: ast.Module) -> Iterator[Finding]:
    """The findings of a harness's syntax tree."""
    modules = _modules(tree)
    own = _own_names(tree)
    called = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
    texts = _texts(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from _import(node)
        elif isinstance(node, ast.Name):
            yield from _name(node, own)
            if node.id in BY_NAME and node not in called:
                yield found(node, f"hands {node.id} on: attributes that are looked up by computed names")
        elif isinstance(node, ast.Attribute):
            yield from _attribute(node, own, modules)
            if node.attr in FORMATTING:
                yield from _formats(node, texts)
        elif isinstance(node, ast.Call):
            yield from _call(node)
        elif isinstance(node, ast.Constant):
            yield from _constant(node)


def _modules(tree: ast.Module) -> dict[str, str]:
    """Local names of imported modules and of what was imported from them: name to module."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {(a.asname or a.name.partition(".")[0]): a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {(a.asname or a.name): f"{node.module}.{a.name}" for a in node.names}
    return names


def _own_names(tree: ast.Module) -> set[str]:
    """Names and attributes that the source itself defines."""
    own: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            own.add(node.id)
        elif isinstance(node, ast.arg):
            own.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and not node.attr.startswith("__"):
            own.add(node.attr)
    return own


def _import(node: ast.Import | ast.ImportFrom) -> Iterator[Finding]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name not in ALLOWED_IMPORTS:
                yield found(node, f"imports {alias.name}")
        return
    module = "." * node.level + (node.module or "")
    if module == "whale_envs.harness":
        offered = {*helpers.__all__, "ToolUseError", "*"}
        for alias in node.names:
            if alias.name not in offered:
                yield found(node, f"imports {alias.name} from whale_envs.harness, which offers no such helper")
    elif module not in ALLOWED_IMPORTS:
        yield found(node, f"imports from {module}")
    else:
        for alias in node.names:
            if alias.name in EVALUATING:
                yield found(node, f"imports {alias.name} from {module}: code that is made or looked up at run time")
            elif _leads_out(module, alias.name):
                yield found(node, f"imports {alias.name} from {module}, which is none of its public names")


def _leads_out(module: str, name: str) -> bool:
    """Whether a name of an allowed module is another module, or private."""
    if name.startswith("_") and name != "__future__":
        return True
    inner = getattr(importlib.import_module(module), name, None)
    return isinstance(inner, ModuleType) and f"{module}.{name}" not in ALLOWED_IMPORTS


def _name(node: ast.Name, own: set[str]) -> Iterator[Finding]:
    # the first whatever else has that name: to define it somewhere would be an easy disguise
    if node.id in DYNAMIC or (node.id in EVALUATING and node.id not in own):
        yield found(node, f"uses {node.id}: code that is made or looked up at run time")
    elif node.id in own:
        return
    elif node.id in REMOVED_BUILTINS:
        yield found(node, f"uses {node.id}: a harness has no files and no terminal")
    elif _DUNDER.fullmatch(node.id) and node.id not in PLAIN_DUNDERS:
        yield found(node, f"uses {node.id}, the inside of the interpreter")


def _attribute(node: ast.Attribute, own: set[str], modules: dict[str, str]) -> Iterator[Finding]:
    name, base = node.attr, node.value
    module = modules.get(base.id, "") if isinstance(base, ast.Name) else ""
    while isinstance(base, ast.Attribute):
        base = base.value
    if name in EVALUATING and name not in own:
        yield found(node, f"reads .{name}: code that is made or looked up at run time")
    elif isinstance(node.ctx, ast.Store | ast.Del) and isinstance(base, ast.Name) and base.id in modules:
        yield found(node, f"changes {ast.unparse(node)}, which outlives an episode")
    elif _FRAMES.fullmatch(name) or (_DUNDER.fullmatch(name) and name not in PLAIN_DUNDERS):
        yield found(node, f"reads .{name}, the inside of the interpreter")
    elif name.startswith("_") and name not in own and name not in PLAIN_DUNDERS:
        yield found(node, f"reads .{name}, which is private to something else")
    elif module in ALLOWED_IMPORTS and _leads_out(module, name):
        yield found(node, f"reaches the module {name} through {module}")


def _texts(tree: ast.Module) -> dict[str, list[ast.expr]]:
    """What is assigned to each name that is given nothing in any other way."""
    assigned: dict[str, list[ast.expr]] = {}
    stored: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            assigned.setdefault(node.targets[0].id, []).append(node.value)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            stored[node.id] += 1
        elif isinstance(node, ast.arg):
            stored[node.arg] += 1
    return {name: values for name, values in assigned.items() if stored[name] == len(values)}


def _formats(node: ast.Attribute, given: dict[str, list[ast.expr]]) -> Iterator[Finding]:
    """Findings where a text is filled in that is not written out, or that names the inside of something."""
    texts = given.get(node.value.id, []) if isinstance(node.value, ast.Name) else [node.value]
    written = [fold(text) for text in texts]
    if not texts or None in written:
        yield found(node, f"fills in ({node.attr}) a text that is not written out: it may name any attribute")
    elif any(re.search(r"\{[^{}]*[.\[]_", text or "") for text in written):
        yield found(node, f"fills in ({node.attr}) a text that names the inside of something")


def _call(node: ast.Call) -> Iterator[Finding]:
    if isinstance(node.func, ast.Name) and node.func.id in BY_NAME:
        name = node.args[1] if len(node.args) > 1 else None
        if not (isinstance(name, ast.Constant) and isinstance(name.value, str) and not name.value.startswith("_")):
            yield found(node, f"{node.func.id} with a name that is computed or private")


def _constant(node: ast.Constant) -> Iterator[Finding]:
    value = node.value
    if isinstance(value, bytes):
        value = value.decode("latin-1")
    if isinstance(value, str):
        if inner := _DUNDER.search(value):
            yield found(node, f"names {inner[0]} in a string")
        elif path := _SYSTEM_PATH.search(value):
            yield found(node, f"names a path under {path[0]} in a string")
        elif len(value) > MAX_RUN and max(map(len, value.split()), default=0) > MAX_RUN:
            yield found(node, f"holds {len(value):,} characters of data without words")
    elif isinstance(value, int) and value.bit_length() > 3.33 * MAX_DIGITS:
        yield found(node, f"holds an integer of more than {MAX_DIGITS} digits")
