"""Proposers by name. Nothing of what they need is imported before it is known that it is needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from whale_envs.errors import unknown
from whale_train.meta_harness.proposers.base import Proposer

if TYPE_CHECKING:
    from whale_envs import Domain
    from whale_train.meta_harness.proposers.service import Service

KINDS = ("mutation", "anthropic", "openai")


def load_proposer(spec: str, domain: Domain) -> Proposer:
    """The proposer that `spec` names: "mutation", "anthropic" (see `anthropic_service`), "openai:MODEL" (see
    `openai_service`).

    Raises `UserError` for one that is unknown or malformed, a key that is not set, an endpoint that does not answer.
    """
    return _ready(spec)(domain)


def check_proposer(spec: str) -> None:
    """Raise what `load_proposer` would."""
    _ready(spec)


def check_kind(spec: str) -> None:
    """Raise `UserError` for a proposer of no kind that there is; the rest of `spec` may still be wrong."""
    if spec.partition(":")[0] not in KINDS:
        raise unknown("proposer", spec, ("mutation", "anthropic", "openai:MODEL@URL"))


def _ready(spec: str) -> Callable[[Domain], Proposer]:
    """What makes the proposer for a domain; all that can be missing has been looked for."""
    check_kind(spec)
    kind = spec.partition(":")[0]
    if kind == "anthropic":
        from whale_train.meta_harness.proposers.anthropic import anthropic_service

        return _agent(anthropic_service(spec))
    if kind == "openai":
        from whale_train.meta_harness.proposers.openai import openai_service

        return _agent(openai_service(spec))
    from whale_train.meta_harness.proposers.mutation import MutationProposer

    return lambda domain: MutationProposer()


def _agent(service: Service) -> Callable[[Domain], Proposer]:
    from whale_train.meta_harness.proposers.agent import AgentProposer

    return lambda domain: AgentProposer(service, domain)
