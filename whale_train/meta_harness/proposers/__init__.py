"""Proposers by name. Nothing of what they need is imported before it is known that it is needed."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from whale_envs.errors import UserError, unknown
from whale_train.meta_harness.proposers.base import Cost, Proposer

if TYPE_CHECKING:
    from whale_envs import Domain
    from whale_train.meta_harness.proposers.agent import Limits
    from whale_train.meta_harness.proposers.service import Service

KINDS = ("mutation", "anthropic", "openai", "scripted")
_SPELLED = ("mutation", "anthropic", "openai:MODEL@URL", "scripted:FILE.py,...", "module:attribute")


def load_proposer(spec: str, domain: Domain, limits: Limits | None = None) -> Proposer:
    """The proposer that `spec` names: "mutation", "anthropic" (see `anthropic_service`), "openai:MODEL" (see
    `openai_service`), "scripted:FILE,..." (see `scripted`), or "module:attribute" for one from outside: a class or
    function that is called without arguments and gives a `Proposer`. `limits` are those of one that is an agent.

    Raises `UserError` for one that is unknown or malformed, a key that is not set, an endpoint that does not answer,
    a file or module that is not there.
    """
    return _ready(spec)(domain, limits)


def check_proposer(spec: str) -> None:
    """Raise what `load_proposer` would."""
    _ready(spec)


def check_kind(spec: str) -> None:
    """Raise `UserError` for a proposer of no kind that there is; the rest of `spec` may still be wrong."""
    kind, colon, _ = spec.partition(":")
    if kind not in KINDS and not colon:
        raise unknown("proposer", spec, _SPELLED)


def _ready(spec: str) -> Callable[[Domain, Limits | None], Proposer]:
    """What makes the proposer for a domain; all that can be missing has been looked for."""
    check_kind(spec)
    kind = spec.partition(":")[0]
    if kind == "anthropic":
        from whale_train.meta_harness.proposers.anthropic import anthropic_service

        return _agent(anthropic_service(spec))
    if kind == "openai":
        from whale_train.meta_harness.proposers.openai import openai_service

        return _agent(openai_service(spec))
    if kind == "scripted":
        from whale_train.meta_harness.proposers.scripted import scripted

        proposer = scripted(spec)
        return lambda domain, limits: proposer
    if spec != "mutation":
        outside = _outside(spec)
        return lambda domain, limits: outside
    from whale_train.meta_harness.proposers.mutation import MutationProposer

    return lambda domain, limits: MutationProposer()


def _outside(spec: str) -> Proposer:
    """The proposer that "module:attribute" makes."""
    module, _, name = spec.partition(":")
    try:
        made = getattr(importlib.import_module(module), name)()
    except UserError:
        raise
    except Exception as error:  # the module is the user's, and may raise anything
        line = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise UserError(
            f"cannot make proposer {spec!r} ({line}): expected module:attribute, a class or function that is called "
            f"without arguments, or one of {', '.join(_SPELLED[:-1])}"
        ) from error
    lacks = [a for a in ("name", "cost", "exchanges", "propose") if not hasattr(made, a)]
    if lacks or not callable(made.propose) or not isinstance(made.cost, Cost):
        wrong = f"lacks {', '.join(lacks)}" if lacks else "has no method propose, or a cost that is no Cost"
        raise UserError(
            f"proposer {spec!r} {wrong}: give it what whale_train.meta_harness.proposers.base.Proposer says"
        )
    proposer: Proposer = made
    return proposer


def _agent(service: Service) -> Callable[[Domain, Limits | None], Proposer]:
    from whale_train.meta_harness.proposers.agent import AgentProposer

    return lambda domain, limits: AgentProposer(service, domain, limits)
