"""The namespace that a harness's source runs in: allowed imports, and `random` seeded per episode.

Used alike by the in-process session and by the jailed worker, so that the same file behaves the same in both.
Standard library only, for the same reason as `helpers`. This is a contract, not a jail: what contains a hostile
harness is the process around it (`whale_envs.sandbox`).
"""

from __future__ import annotations

import builtins
import random
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, ModuleType
from typing import Any

ALLOWED_IMPORTS = frozenset(
    "__future__ re json math random statistics collections itertools functools string textwrap difflib unicodedata "
    "dataclasses typing html".split()
)


def load_run(code: CodeType, helpers: ModuleType, seed: int) -> Callable[..., Any]:
    """Execute a harness module in a fresh namespace and return its `run`.

    `random` inside it is a generator of its own, seeded with `seed`.
    """
    own_random = random.Random(seed)

    def import_allowed(
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> Any:
        if name == "whale_envs.harness" and fromlist:
            return helpers
        if name == "random":
            return own_random
        if level == 0 and name.partition(".")[0] in ALLOWED_IMPORTS:
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        raise ImportError(f"a harness may not import {name!r}: allowed are whale_envs.harness, {', '.join(sorted(ALLOWED_IMPORTS))}")

    module = ModuleType("harness")  # registered nowhere: the next episode gets another
    scope = module.__dict__
    scope["__builtins__"] = {**vars(builtins), "__import__": import_allowed}
    exec(code, scope)
    run: Callable[..., Any] = scope["run"]
    return run
