"""A proposer that hands in what it was given: harness files of yours, or what a test wants."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from whale_envs.errors import UserError
from whale_train.meta_harness.archive import Archive, tree_hash
from whale_train.meta_harness.proposers.base import Cost, Proposal, ProposerError


class ScriptedProposer:
    """Hands in, in order, what the archive does not hold yet, so that a search that was killed goes on with the rest.

    A `ProposerError` among the proposals is raised once, when its turn comes.
    """

    name = "scripted"
    cost = Cost()
    exchanges: Sequence[str] = ()

    def __init__(self, *script: Proposal | ProposerError) -> None:
        self._script = list(script)

    def propose(self, archive: Archive, count: int, seed: int) -> list[Proposal]:
        """See `Proposer.propose`."""
        found: list[Proposal] = []
        for entry in self._script:
            if len(found) == count:
                break
            if isinstance(entry, ProposerError):
                if found:
                    break
                self._script.remove(entry)
                raise entry
            if archive.with_tree(tree_hash(entry.source)) is None:
                found.append(entry)
        return found


def scripted(spec: str) -> ScriptedProposer:
    """The proposer that "scripted:FILE,FILE,..." names, each a harness's file. Raises `UserError` for what is
    malformed or cannot be read."""
    names = [name for name in spec.partition(":")[2].split(",") if name]
    if not names:
        raise UserError(f"proposer {spec!r}: expected scripted:FILE.py,FILE.py,..., the harnesses to try in order")
    return ScriptedProposer(*(_read(Path(name)) for name in names))


def _read(path: Path) -> Proposal:
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise UserError(f"cannot read {path} ({why}): expected a harness's file, a Python source") from None
    return Proposal(source, f"{path.name}, as it was given.", (), (path.stem,))
