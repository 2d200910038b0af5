"""Proposers by name. Nothing of what they need is imported before it is known that it is needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from whale_envs.errors import unknown
from whale_train.meta_harness.proposers.base import Proposer

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
        from whale_train.meta_harness.proposers.outside import outside

        plugged = outside(spec, _SPELLED[:-1])
        return lambda domain, limits: plugged
    from whale_train.meta_harness.proposers.mutation import MutationProposer

    return lambda domain, limits: MutationProposer()


def _agent(service: Service) -> Callable[[Domain, Limits | None], Proposer]:
    from whale_train.meta_harness.proposers.agent import AgentProposer

    return lambda domain, limits: AgentProposer(service, domain, limits)
