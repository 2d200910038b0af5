"""The static layer: what can be read off a harness's source."""

from __future__ import annotations

import ast
import functools

from whale_envs.harness.audit.choices import choices
from whale_envs.harness.audit.finding import Finding
from whale_envs.harness.audit.reach import reach
from whale_envs.harness.audit.rows import Rows, copied
from whale_envs.harness.load import Harness
from whale_envs.task import TaskSet

#: Most levels of a syntax tree; a file of a hundred lines has some 20, and Python's stack ends the reader at some 300.
MAX_NESTING = 200


def static_findings(harness: Harness, tasks: TaskSet) -> list[Finding]:
    """What the source of a harness gives away, against the tasks that it is to be scored on. Some milliseconds.

    It reads, and runs nothing. What it cannot see (a table that is computed, an attribute that is spelled out at run
    time) is for the other layers and for the jail.
    """
    tree, rows = ast.parse(harness.source), _rows(tasks)
    if _nesting(tree) > MAX_NESTING:
        return [Finding("static", "nested too deep to be read")]
    found = [*reach(tree), *copied(tree, rows), *choices(tree, rows)]
    return list(dict.fromkeys(found))


def _nesting(tree: ast.Module) -> int:
    """The levels of a syntax tree."""
    deepest, waiting = 0, [(tree, 1)]  # no recursion: it may nest deeper than Python's stack
    while waiting:
        node, level = waiting.pop()
        deepest = max(deepest, level)
        waiting += [(inner, level + 1) for inner in ast.iter_child_nodes(node)]  # type: ignore[misc]
    return deepest


@functools.lru_cache(maxsize=4)
def _rows(tasks: TaskSet) -> Rows:
    return Rows(tasks)
