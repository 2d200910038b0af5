"""The audit's layers that need episodes, and the whole audit of one harness (`whale audit`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from whale_envs import Domain, Episode, Harness
from whale_envs.harness.audit import Finding, Layer, canaries, in_vain, known_kind, provenance, static_findings
from whale_envs.harness.jail import Jail
from whale_envs.task import TaskSet
from whale_train.meta_harness.nulls import FULL, HEARD, Compared, NullPolicy, NullTest
from whale_train.policies.base import Policy
from whale_train.progress import Progress
from whale_train.rollout import rollout

#: Canaries of a whole audit, and of one that a search does before it accepts.
CANARIES, FEW_CANARIES = 16, 2
#: Tasks that are played twice to see that episodes do not know of each other.
TWICE = 2
#: Tasks that are played where strings hash otherwise.
ORDERED = 4
#: The most findings that a layer lists.
LISTED = 5


def provenance_findings(episodes: Sequence[Episode]) -> list[Finding]:
    """The episodes whose score is not the model's, the first `LISTED` of them."""
    return [f for e in episodes if (f := provenance(e))][:LISTED]


def isolation_findings(null: NullTest, harness: Harness, jail: Jail | None) -> list[Finding]:
    """Play a few tasks, then the same in another order: an episode that goes otherwise knew of those before it."""
    tasks = null.tasks[:TWICE]
    first = null.play(harness, "random", tasks, jail)
    again = null.play(harness, "random", tasks[::-1], jail)[::-1]
    return [
        Finding("isolation", "the same replies gave another episode, once others had been played", f"task {a.task_id}")
        for a, b in zip(first, again, strict=True)
        if not a == b  # noqa: SIM201 (msgspec gives a struct a `!=` of its own)
    ]


def order_findings(null: NullTest, harness: Harness, jail: Jail) -> list[Finding]:
    """Play a few tasks where strings hash otherwise: an episode that goes otherwise depends on the order of a set, and
    goes otherwise in every process that is not a jail."""
    tasks = null.tasks[:ORDERED]
    other = Jail(harness, hash_seed=1)
    try:
        again = null.play(harness, "random", tasks, other)
    finally:
        other.close()
    said = "its episode depends on the order of a set or on hash(), which differ between processes: sort what is a set"
    first = null.play(harness, "random", tasks, jail)
    pairs = zip(first, again, strict=True)
    return [Finding("contract", said, f"task {a.task_id}") for a, b in pairs if not a == b][:1]  # noqa: SIM201 (as above)


def canary_findings(
    null: NullTest, harness: Harness, jail: Jail | None, count: int, policies: Sequence[Policy]
) -> list[Finding]:
    """Play `count` canaries with each of some policies; one that knows nothing will do. None are known for answers of
    a kind that does not ship."""
    if not known_kind(null.tasks[0].gold):
        return []
    domain = canaries(null.domain, null.tasks, count, null.seed)
    played = [
        episode
        for policy in policies
        for episode in rollout(policy, domain, harness, domain.splits.harness, "harness", null.seed, jail=jail)
    ]
    solved = [e.task_id for e in played if e.solved]
    said = f"it solves {len(solved)} of {len(played)} canaries, whose answers nobody can know"
    return [Finding("canary", said, f"task {solved[0]}")] if solved else []


def blind_findings(null: NullTest, harness: Harness, own: Sequence[Episode]) -> list[Finding]:
    """What a candidate that is about to be accepted should not have done without the model: the null model and a few
    canaries. `own` are its episodes with the policy. Some sixty more are played, which cost no model call."""
    jail, null.own = Jail(harness), own
    try:
        found = null.findings(null.compare(harness, jail, thorough=False))
        return found or canary_findings(null, harness, jail, FEW_CANARIES, [NullPolicy("random", null.domain.name)])
    finally:
        jail.close()


class Checked(msgspec.Struct, frozen=True):
    """A layer of an audit: what was looked at, what was found, and the seconds that it took."""

    layer: Layer
    looked_at: str
    findings: list[Finding]
    seconds: float


class Audit(msgspec.Struct, frozen=True):
    """What became of a harness's audit.

    `nulls` has the figures of the null model, `contained` what the harness tries in vain, which is no finding.
    """

    harness: str
    layers: list[Checked]
    nulls: list[Compared]
    contained: list[str]

    @property
    def findings(self) -> list[Finding]:
        """All findings, in the order of the layers."""
        return [f for checked in self.layers for f in checked.findings]

    @property
    def passed(self) -> bool:
        """Whether nothing was found."""
        return not self.findings


def audit(
    policy: Policy, domain: Domain, harness: Harness, tasks: TaskSet, limit: int, seed: int, progress: Progress
) -> Audit:
    """Audit a harness, jailed, in every layer: on the first `limit` tasks with `policy`, and with policies that know
    nothing. Costs `limit` rollouts with the policy and some 350 without it.
    """
    harness = Harness(harness.source, harness.name, trusted=False)
    null, layers, compared = NullTest(domain, tasks, seed, harness), list[Checked](), list[Compared]()
    jail = Jail(harness)

    def check(layer: Layer, looked_at: str, look: Callable[[], list[Finding]]) -> None:
        start = time.perf_counter()
        found = look()
        layers.append(Checked(layer, looked_at, found, round(time.perf_counter() - start, 3)))

    def blind() -> list[Finding]:
        compared.extend(null.compare(harness, jail, thorough=True))
        return null.findings(compared)

    try:
        check(
            "static",
            f"{len(harness.source.splitlines())} lines",
            lambda: static_findings(harness, domain.splits.harness),
        )
        started = time.perf_counter()
        progress.begin("audit", min(limit, len(tasks)))
        played = rollout(policy, domain, harness, tasks[:limit], "harness", seed, progress=progress, jail=jail)
        took = round(time.perf_counter() - started, 3)
        broken = _broken(played) or order_findings(null, harness, jail)
        layers.append(Checked("contract", f"{len(played)} episodes", broken, took))
        null.recorded = null.own = played
        check("provenance", f"{sum(e.solved for e in played)} solved episodes", lambda: provenance_findings(played))
        check("isolation", f"{TWICE} tasks, twice", lambda: isolation_findings(null, harness, jail))
        check("null model", f"{len(null.kinds) * min(FULL, len(tasks))} episodes", blind)
        players = [policy, *(NullPolicy(kind, domain.name) for kind in null.kinds if kind not in HEARD)]
        canary = f"{CANARIES * len(players)} episodes"
        check("canary", canary, lambda: canary_findings(null, harness, jail, CANARIES, players))
    finally:
        jail.close()
    return Audit(harness.hash, layers, compared, in_vain(harness, played))


def _broken(episodes: Sequence[Episode]) -> list[Finding]:
    """The finding that a harness fails more often than not, or answers without asking."""
    failed = [e for e in episodes if e.failure and e.failure.owner == "harness"]
    mute = [e for e in episodes if not e.calls and not e.failure]
    if 2 * len(failed) > len(episodes) and failed[0].failure is not None:
        said = f"it fails in {len(failed)} of {len(episodes)} episodes: {failed[0].failure.message}"
        return [Finding("contract", said, f"task {failed[0].task_id}")]
    if mute:
        return [Finding("contract", "it answers without asking the model", f"task {mute[0].task_id}")]
    return []
