"""A proposer without a model: edits of ancestors' source, and exchange between them.

It knows general mechanisms (`turn_mechanisms`, `view_mechanisms`, `text_mechanisms`, `crossover`), each found in a
harness by its shape, and nothing of which of them help: that it reads from the archive. An ancestor is drawn the more
often the better it scored; an axis (a mechanism and a direction) the more often it raised a child above its parent. A
candidate is one edit or two, or what two ancestors changed, together. Where a phase lets only strings change, only
edits of those are drawn.
"""

from __future__ import annotations

import functools
import math
import random
from collections import defaultdict
from collections.abc import Sequence

from whale_envs import Harness
from whale_envs.errors import UserError
from whale_train.meta_harness.archive import Archive, tree_hash
from whale_train.meta_harness.prompt_only import beyond_strings, refused_edit
from whale_train.meta_harness.proposers.base import Cost, Proposal, ProposerError
from whale_train.meta_harness.proposers.code import Code
from whale_train.meta_harness.proposers.crossover import common_ancestor, exchanged, merge, titled, trail
from whale_train.meta_harness.proposers.shapes import Edit
from whale_train.meta_harness.proposers.text_mechanisms import TEXT_MECHANISMS
from whale_train.meta_harness.proposers.turn_mechanisms import TURN_MECHANISMS
from whale_train.meta_harness.proposers.view_mechanisms import VIEW_MECHANISMS
from whale_train.meta_harness.records import Candidate

#: A difference in mean score that makes an ancestor or an axis e times as likely to be drawn: about one standard
#: error of a candidate's score on 100 tasks.
SCALE = 0.05
#: How often a candidate joins two ancestors, and how often it makes a second edit.
JOINED, TWICE = 0.15, 0.2
#: How likely an axis that was never tried is to be drawn, beside 1 for one that was tried and made no difference:
#: a dozen candidates a phase are few for some thirty axes, so that what is not known comes first.
UNTRIED = 4.0
#: Draws for one candidate before the proposer says that it has none.
DRAWS = 200


class MutationProposer:
    """See the module. The same archive and seed give the same proposals."""

    name = "mutation"
    cost = Cost()
    exchanges: Sequence[str] = ()

    def propose(self, archive: Archive, count: int, seed: int) -> list[Proposal]:
        """Up to `count` candidates that the archive does not hold; see `Proposer.propose`."""
        ranked = archive.scored()
        if not ranked:
            raise ProposerError("the archive holds no harness with a score to start from")
        tried = {c.tree for c in archive.candidates}
        worth = axis_weights(archive)
        proposals: list[Proposal] = []
        for index in range(count):
            rng = random.Random(f"{seed}/{index}")
            found = None
            for _ in range(DRAWS):
                found = self._draw(archive, ranked, worth, rng)
                if found and tree_hash(found.source) not in tried and not refused_edit(archive, found.source):
                    break
                found = None
            if found is None:
                break
            tried.add(tree_hash(found.source))
            for axis in found.axes:  # the next candidate of the round rather tries another axis
                worth[axis] /= 4
            proposals.append(found)
        return proposals

    def _draw(
        self, archive: Archive, ranked: list[Candidate], worth: dict[str, float], rng: random.Random
    ) -> Proposal | None:
        """One candidate, or None when the draw led nowhere."""
        parent = _pick(archive, ranked, rng)
        if len(ranked) > 1 and rng.random() < JOINED:
            return self._join(archive, parent, _pick(archive, [c for c in ranked if c is not parent], rng), rng)
        source = archive.source(parent.hash)
        strings = archive.phase is not None and archive.phase.edits == "prompt-only"
        made: list[Edit] = []
        for _ in range(2 if rng.random() < TWICE else 1):
            edit = draw_edit(source, worth, rng, [e.axis for e in made], strings)
            if edit is None:
                return None
            source = edit.text
            made.append(edit)
        source = titled(source, [f"{e.axis} ({e.what})" for e in made])
        hypothesis = "; and ".join(f"{e.axis} ({e.what}): {e.expects}" for e in made)
        return Proposal(source, f"Of {parent.hash}, {hypothesis}.", (parent.hash,), tuple(e.axis for e in made))

    def _join(self, archive: Archive, parent: Candidate, donor: Candidate, rng: random.Random) -> Proposal | None:
        """What both changed of their common ancestor or, when that cannot be joined, one piece of the donor."""
        ours, theirs = archive.source(parent.hash), archive.source(donor.hash)
        base = common_ancestor(archive, parent.hash, donor.hash)
        if base not in (None, parent.hash, donor.hash):
            assert base is not None
            joined = merge(*(titled(text, []) for text in (archive.source(base), ours, theirs)))
            if joined is not None and _works(joined):
                both = f"What {parent.hash} and {donor.hash} changed of {base}"
                joined = titled(joined, trail(ours)[1] + trail(theirs)[1] or [both])
                hypothesis = f"{both}, together: each helps where the other does not."
                return Proposal(joined, hypothesis, (parent.hash, donor.hash), ("merge",))
        edits = [e for e in exchanged(Code(ours), Code(theirs)) if _works(e.text)]
        if not edits:
            return None
        edit = rng.choice(sorted(edits, key=lambda e: e.what))
        hypothesis = f"Of {parent.hash}, with {edit.what} from {donor.hash}: {edit.expects}."
        return Proposal(
            titled(edit.text, [f"{edit.what} of {donor.hash}"]), hypothesis, (parent.hash, donor.hash), ("exchange",)
        )


@functools.lru_cache(maxsize=256)
def edits_of(source: str) -> tuple[Edit, ...]:
    """Every edit that the mechanisms know for a source."""
    code = Code(source)
    return tuple(e for mechanism in (*TURN_MECHANISMS, *VIEW_MECHANISMS, *TEXT_MECHANISMS) for e in mechanism(code))


@functools.lru_cache(maxsize=256)
def string_edits_of(source: str) -> tuple[Edit, ...]:
    """Those of them that change nothing but strings."""
    return tuple(e for e in edits_of(source) if not beyond_strings(source, e.text))


def draw_edit(
    source: str, worth: dict[str, float], rng: random.Random, taken: Sequence[str] = (), strings: bool = False
) -> Edit | None:
    """An edit of `source`, or of its `strings` alone: an axis by its worth, then one of its steps, each as likely as
    the next.

    Axes that begin with the same word as one of those `taken` are left out, so that two edits are two ideas.
    None when there is no edit, or when the one drawn breaks the source (a mechanism met a shape that it misread).
    """
    axes: dict[str, list[Edit]] = defaultdict(list)
    words = {axis.split()[0] for axis in taken}
    for edit in string_edits_of(source) if strings else edits_of(source):
        if edit.axis.split()[0] not in words:
            axes[edit.axis].append(edit)
    if not axes:
        return None
    names = sorted(axes)
    edit = rng.choice(axes[rng.choices(names, [worth[n] for n in names])[0]])
    return edit if _works(edit.text) and tree_hash(edit.text) != tree_hash(source) else None


def axis_weights(archive: Archive) -> dict[str, float]:
    """How often each axis is to be drawn, `UNTRIED` for one that was never tried.

    Each child's gain over its parent under the same weights counts for the axes that it took, in equal shares, since
    a trap beside a good idea is no evidence against the idea. The sum over one more than the number of trials is the
    estimate, drawn towards 0 as long as trials are few.
    """
    gains: dict[str, list[float]] = defaultdict(list)
    for child in archive.candidates:
        for key, score in child.scores.items():
            before = [archive[p].scores[key].mean for p in child.parents if p in archive and key in archive[p].scores]
            for axis in child.axes if before else ():
                gains[axis].append((score.mean - max(before)) / len(child.axes))
        if child.gate:
            for axis in child.axes:
                gains[axis].append(-SCALE / len(child.axes))
    worth: dict[str, float] = defaultdict(lambda: UNTRIED)
    for axis, values in gains.items():
        worth[axis] = math.exp(max(-2.0, min(2.0, sum(values) / (len(values) + 1) / SCALE)))
    return worth


def _pick(archive: Archive, ranked: list[Candidate], rng: random.Random) -> Candidate:
    """A scored candidate, the better ones more often."""
    assert archive.phase is not None
    means = [c.scores[str(archive.phase.score_key)].mean for c in ranked]
    return rng.choices(ranked, [math.exp((m - max(means)) / SCALE) for m in means])[0]


def _works(source: str) -> bool:
    """Whether a source is a harness as far as its text tells."""
    try:
        Harness(source)
    except UserError:
        return False
    return not Code(source).undefined()
