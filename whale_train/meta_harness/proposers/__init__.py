"""Proposers by name."""

from __future__ import annotations

import importlib

from whale_envs.errors import unknown
from whale_envs.services import read_key
from whale_train.meta_harness.proposers.base import Proposer

#: name: (module, class, the environment variable that its key is in)
PROPOSERS = {
    "mutation": ("whale_train.meta_harness.proposers.mutation", "MutationProposer", None),
    "anthropic": ("whale_train.meta_harness.proposers.anthropic", "AnthropicProposer", "ANTHROPIC_API_KEY"),
}


def load_proposer(name: str) -> Proposer:
    """A proposer, ready to propose. Raises `UserError` for an unknown name and for a key that is not set."""
    need_key(name)
    module, cls, _ = PROPOSERS[name]
    proposer: Proposer = getattr(importlib.import_module(module), cls)()
    return proposer


def need_key(name: str) -> None:
    """Raise `UserError` for an unknown name and for a key that is not set."""
    if name not in PROPOSERS:
        raise unknown("proposer", name, PROPOSERS)
    if (key := PROPOSERS[name][2]) is not None:
        read_key(key, "use --proposer mutation, which needs none")
