"""A proposer that plugs in by "module:attribute": what goes wrong in it is its failure, and it is asked again."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

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
        wrong = next((p for p in found if not isinstance(p, Proposal)), None)
        if wrong is not None:
            raise ProposerError(f"it handed in {wrong!r:.80}: expected a list of `Proposal`s")
        return found


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
    if lacks or not callable(made.propose) or not isinstance(made.cost, Cost):
        wrong = f"lacks {', '.join(lacks)}" if lacks else "has no method propose, or a cost that is no Cost"
        raise UserError(
            f"proposer {spec!r} {wrong}: give it what whale_train.meta_harness.proposers.base.Proposer says"
        )
    return OutsideProposer(made)


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]
