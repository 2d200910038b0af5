"""Proposers by name."""

from __future__ import annotations

import importlib
import os

from whale_envs.errors import UserError, unknown
from whale_train.meta_harness.proposers.base import Proposer

#: name: (module, class, the environment variable that its key is in)
PROPOSERS = {
    "mutation": ("whale_train.meta_harness.proposers.mutation", "MutationProposer", None),
    "anthropic": ("whale_train.meta_harness.proposers.anthropic", "AnthropicProposer", "ANTHROPIC_API_KEY"),
}


def load_proposer(name: str) -> Proposer:
    """A proposer, ready to propose. Raises `UserError` for an unknown name and for a key that is not set."""
    if name not in PROPOSERS:
        raise unknown("proposer", name, PROPOSERS)
    module, cls, key = PROPOSERS[name]
    if key is not None and not os.environ.get(key):
        raise UserError(f"proposer {name} needs a key: set {key}, or use --proposer mutation, which needs none")
    proposer: Proposer = getattr(importlib.import_module(module), cls)()
    return proposer
