"""The domains by name, loaded once and shared."""

from __future__ import annotations

import functools
import importlib
import os

from whale_envs.domain import Domain
from whale_envs.errors import unknown

#: name: (module, class, Gymnasium id)
DOMAINS = {
    "search-qa": ("whale_envs.domains.search_qa", "SearchQA", "whale/SearchQA"),
    "math": ("whale_envs.domains.math_code", "MathCode", "whale/Math"),
    "chess": ("whale_envs.domains.chess_puzzles", "ChessPuzzles", "whale/Chess"),
}


def load_domain(name: str, dataset: str | None = None, verifier: str | None = None) -> Domain:
    """The domain `name` with the bundled mini world or with `dataset`, scored by its own verifier or by `verifier`.

    Each class says which it takes.
    """
    return _loaded(name, dataset, verifier, os.getcwd() if dataset else "")


# by all of them, however a caller gives them: a relative path is another file in another folder
@functools.lru_cache(maxsize=8)
def _loaded(name: str, dataset: str | None, verifier: str | None, folder: str) -> Domain:
    if name not in DOMAINS:
        raise unknown("domain", name, DOMAINS)
    module, cls, _ = DOMAINS[name]
    make = getattr(importlib.import_module(module), cls)
    loaded: Domain = make(dataset) if verifier is None else make(dataset, verifier=verifier)
    return loaded
