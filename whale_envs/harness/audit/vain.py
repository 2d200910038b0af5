"""What a harness tries in vain: no cheat, since it gains nothing, but worth a line to whoever reads an audit.

The rules of a world and the jail see to it that nothing comes of these: a puzzle that has ended takes no move, an
answer that is no text matches none, and what an episode leaves in memory is gone with its process.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from whale_envs.episode import Episode
from whale_envs.harness.load import Harness

#: Methods that change a list, a dict or a set.
_CHANGES = frozenset(("append", "extend", "insert", "add", "update", "setdefault", "pop", "clear", "remove"))
_CONTAINERS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)


def in_vain(harness: Harness, episodes: Sequence[Episode]) -> list[str]:
    """What the source of a harness and the episodes that it played show of that, a line each, the same line once."""
    return list(dict.fromkeys([*_notes(ast.parse(harness.source)), *(line for e in episodes for line in _played(e))]))


def _notes(tree: ast.Module) -> Iterator[str]:
    """Places in which a module, or a function of it, would remember one episode in the next."""
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)]
    for function in functions:
        if any(isinstance(default, _CONTAINERS) for default in [*function.args.defaults, *function.args.kw_defaults]):
            yield f"keeps notes in a default argument (line {function.lineno}): each episode has a module of its own"
    held = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, _CONTAINERS)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for function in functions:
        for node in ast.walk(function):
            if isinstance(changed := _changed(node), ast.Name) and changed.id in held:
                yield f"keeps notes in {changed.id} of its module: each episode has a module of its own"


def _changed(node: ast.AST) -> ast.expr | None:
    """The container that a node changes."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGES:
        return node.func.value
    return node.value if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load) else None


def _played(episode: Episode) -> Iterator[str]:
    moves = [call for call in episode.tool_calls if call.name == "move"]
    if any("puzzle is over" in call.error for call in moves):
        yield "plays on when a puzzle is over: no move is taken any more"
    if isinstance(episode.answer, dict):
        yield f"answers with a record ({', '.join(sorted(episode.answer))[:60]}): only a text or a number can be right"
