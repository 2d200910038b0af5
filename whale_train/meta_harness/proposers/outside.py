"""A proposer that plugs in by "module:attribute": what goes wrong in it is its failure, and it is asked again."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

import msgspec

from whale_envs.errors import UserError
from whale_train.meta_harness.archive import Archive
from whale_train.meta_harness.proposers.base import Cost, Proposal, Proposer, ProposerError


class OutsideProposer:
    """A proposer from outside. Whatever it raises, and whatever it hands in that is no proposal, is a
    `ProposerError`."""

    def __init__(self, made: Proposer) -> None:
        self._made = made

    @property
    def name(self) -> str:
        """See `Proposer`."""
        return self._made.name

    @property
    def cost(self) -> Cost:
        """See `Proposer`."""
        return self._made.cost

    @property
    def exchanges(self) -> Sequence[str]:
        """See `Proposer`."""
        return self._made.exchanges

    def propose(self, archive: Archive, count: int, seed: int) -> list[Proposal]:
        """See `Proposer`."""
        try:
            found = list(self._made.propose(archive, count, seed))
        except (ProposerError, UserError):
            raise
        except Exception as error:  # the code is the user's, and may raise anything
            raise ProposerError(_line(error)) from error
        return [_checked(proposal) for proposal in found]


def outside(spec: str, spelled: Sequence[str]) -> Proposer:
    """The proposer that "module:attribute" makes, called without arguments.

    Raises `UserError` when it cannot be made or is no `Proposer`; `spelled` are the other ways to name one.
    """
    module, _, name = spec.partition(":")
    try:
        made = getattr(importlib.import_module(module), name)()
    except UserError:
        raise
    except Exception as error:  # the module is the user's, and may raise anything
        raise UserError(
            f"cannot make proposer {spec!r} ({_line(error)}): expected module:attribute, a class or function that is "
            f"called without arguments, or one of {', '.join(spelled)}"
        ) from error
    lacks = [a for a in ("name", "cost", "exchanges", "propose") if not hasattr(made, a)]
    right = not lacks and callable(made.propose) and isinstance(made.cost, Cost)
    if not right or not isinstance(made.exchanges, Sequence):
        other = "has no method propose, a cost that is no Cost, or exchanges that are no list"
        wrong = f"lacks {', '.join(lacks)}" if lacks else other
        raise UserError(
            f"proposer {spec!r} {wrong}: give it what whale_train.meta_harness.proposers.base.Proposer says"
        )
    return OutsideProposer(made)


def _checked(given: object) -> Proposal:
    """What was handed in, if it is a proposal in every field, that a file can hold: it is filed before it is gated, and
    an archive with anything else in it could be read no more."""
    if not isinstance(given, Proposal):
        raise ProposerError(f"it handed in {given!r:.80}: expected a list of `Proposal`s")
    try:
        proposal = msgspec.convert(msgspec.structs.asdict(given), Proposal)
        msgspec.json.encode(proposal)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise ProposerError(f"it handed in a `Proposal` that is none ({_line(error)})") from None
    return proposal


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
