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


def static_findings(harness: Harness, tasks: TaskSet) -> list[Finding]:
    """What the source of a harness gives away, against the tasks that it is to be scored on. A millisecond or two.

    It reads, and runs nothing. What it cannot see (a table that is computed, an attribute that is spelled out at run
    time) is for the other layers and for the jail.
    """
    tree, rows = ast.parse(harness.source), _rows(tasks)
    found = [*reach(tree), *copied(tree, rows), *choices(tree, rows)]
    return list(dict.fromkeys(found))


@functools.lru_cache(maxsize=4)
def _rows(tasks: TaskSet) -> Rows:
    return Rows(tasks)
