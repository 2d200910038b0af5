"""The domains by name."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import NamedTuple

from whale_envs.domain import Domain
from whale_envs.errors import UserError, unknown


class Place(NamedTuple):
    """Where a domain's class is, and the Gymnasium id of its environment."""

    module: str
    cls: str
    id: str


DOMAINS = {
    "search-qa": Place("whale_envs.domains.search_qa", "SearchQA", "whale/SearchQA"),
    "math": Place("whale_envs.domains.math_code", "MathCode", "whale/Math"),
    "chess": Place("whale_envs.domains.chess_puzzles", "ChessPuzzles", "whale/Chess"),
}


def load_domain(name: str, dataset: str | Path | None = None, verifier: str | None = None) -> Domain:
    """The domain `name` with the bundled mini world or with `dataset`, scored by its own verifier or by `verifier`.

    Each class says which it takes. Domains share what was read from files, until these change; each has a verifier of
    its own. Raises `UserError` for a name, data or a verifier that cannot be used.
    """
    if name not in DOMAINS:
        raise unknown("domain", name, DOMAINS)
    if isinstance(dataset, Path):
        dataset = str(dataset)
    if not isinstance(dataset, str | None):
        raise UserError(f"dataset is a {type(dataset).__name__}: expected a path, or for search-qa PATH,corpus=PATH")
    place = DOMAINS[name]
    make = getattr(importlib.import_module(place.module), place.cls)
    loaded: Domain = make(dataset) if verifier is None else make(dataset, verifier=verifier)
    return loaded
