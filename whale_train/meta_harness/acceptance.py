"""Acceptance: which of the harnesses that a search has scored it goes on with.

`best` is the paper's: the highest mean in the archive. `paired` replaces the accepted harness only on evidence, and the
evidence is asked for twice, each time by an exact one-sided sign test over the tasks that both played:

1. on the outcomes that the search has, where the best of many has had its luck;
2. once more on the same tasks under fresh seeds, where nobody has been chosen yet. A rival that fails there is passed
   over for good, and a round pays for one rival at most. So a phase of R rounds accepts a harness that is no better
   with a chance of at most R times the level, however many candidates were looked at.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from whale_train.meta_harness.archive import Archive
from whale_train.meta_harness.records import Outcome, ScoreKey
from whale_train.metrics import binomial_tail


def choose(archive: Archive, key: ScoreKey, accepted: str, level: float | None = None) -> str:
    """The harness to accept among those scored under `key`; the one accepted so far stays unless another beats it.

    Without a `level` the highest mean is taken, ties to fewer turns. With one, a rival has to beat the accepted harness
    at that level, and one that fresh seeds have not confirmed is passed over.
    """
    current = archive[accepted].scores[str(key)]
    for rival in archive.scored(key):
        score = rival.scores[str(key)]
        if (score.mean, -score.turns) <= (current.mean, -current.turns):
            break
        if level is None:
            return rival.hash
        if p_value(archive, key, rival.hash, accepted) <= level:
            again = fresh(key)
            played = all(str(again) in archive[h].scores for h in (rival.hash, accepted))
            if not played or p_value(archive, again, rival.hash, accepted) <= level:
                return rival.hash
    return accepted


def fresh(key: ScoreKey) -> ScoreKey:
    """The key of scores under fresh seeds: other weights, tasks or a search with another seed have others."""
    digest = hashlib.sha256(f"{key.seed}/fresh".encode()).digest()
    return ScoreKey(key.weights, key.data, int.from_bytes(digest[:6], "big"))


def p_value(archive: Archive, key: ScoreKey, rival: str, accepted: str) -> float:
    """The sign test's p value for two harnesses that were scored under `key`."""
    return sign_test(archive.outcomes(rival, key), archive.outcomes(accepted, key))


def sign_test(rival: Mapping[str, Outcome], accepted: Mapping[str, Outcome]) -> float:
    """The chance that a rival no better than the accepted harness wins as many of the tasks on which they differ."""
    pairs = [(rival[t].score, accepted[t].score) for t in rival.keys() & accepted.keys()]
    return binomial_tail(sum(r > a for r, a in pairs), sum(r < a for r, a in pairs))
