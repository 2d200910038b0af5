"""The harness phase: rounds of propose, gate, evaluate, accept, over an archive on disk.

`search` is one phase. Kill it anywhere and call it again with the same arguments: it goes on from the archive and ends
with the same candidates and the same accepted harness, since every seed comes from (seed, key, round, attempt).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from whale_envs import Domain, Episode, Harness
from whale_envs.errors import UserError
from whale_envs.harness.audit import Finding
from whale_envs.task import TaskSet
from whale_train.ledger import Ledger, Spent
from whale_train.meta_harness.acceptance import choose, fresh, p_value
from whale_train.meta_harness.archive import EPISODES, Archive, tree_hash
from whale_train.meta_harness.audit import blind_findings, provenance_findings
from whale_train.meta_harness.evaluate import evaluate, spent, split_tasks
from whale_train.meta_harness.gate import gate, gate_episodes
from whale_train.meta_harness.nulls import NullTest
from whale_train.meta_harness.optimism import estimated_optimism
from whale_train.meta_harness.proposers.base import Proposal, Proposer, ProposerError, ProposerSpent
from whale_train.meta_harness.racing import Race
from whale_train.meta_harness.records import Candidate, Edits, Phase, Proposals, Round, ScoreKey, Tried
from whale_train.policies.base import Policy
from whale_train.progress import Progress


@dataclass(frozen=True)
class SearchSettings:
    """How a harness phase goes.

    Defaults are the paper's where it has one: 6 rounds of 3 candidates, 256 tasks, acceptance by the best mean.

    Attributes:
        rounds: rounds in a phase.
        candidates: candidates a round.
        tasks: the most tasks of the harness split that a candidate is scored on, one episode each.
        shadow: the share of the harness split that no proposer ever sees.
        acceptance: "best" takes the highest mean in the archive under the current weights; "paired" replaces the
            accepted harness only on evidence, which fresh seeds confirm (`whale_train.meta_harness.acceptance`).
        level: the level of the tests of "paired".
        racing: whether candidates are dropped as soon as they are very unlikely to win
            (`whale_train.meta_harness.racing`).
        edits: what a candidate may change of the accepted harness: "all", or "prompt-only", the text of its strings.
        rescore: how many of the best old harnesses, by their last scores, are scored under the phase's weights before
            its first round; there are none in the first phase, or while the weights stay.
        refills: how often a round asks for others in the place of candidates that the gate refused.
        retries: how often a proposer that fails is asked again.
        backoff: seconds before it is asked again, doubled each time.
    """

    rounds: int = 6
    candidates: int = 3
    tasks: int = 256
    shadow: float = 0.25
    acceptance: Literal["best", "paired"] = "best"
    level: float = 0.1
    edits: Edits = "all"
    racing: bool = False
    rescore: int = 0
    refills: int = 2
    retries: int = 3
    backoff: float = 2.0

    def __post_init__(self) -> None:
        for name in ("candidates", "tasks"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} {getattr(self, name)}: a search needs at least 1")
        for name in ("rounds", "rescore", "refills", "retries", "backoff"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} {getattr(self, name)}: give 0 or more")
        for name in ("shadow", "level"):
            if not 0 < getattr(self, name) < 1:
                raise UserError(f"{name} {getattr(self, name)}: give a share between 0 and 1")
        if self.acceptance not in ("best", "paired"):
            raise UserError(f"acceptance {self.acceptance!r}: give best or paired")
        if self.edits not in ("all", "prompt-only"):
            raise UserError(f"edits {self.edits!r}: give all or prompt-only")


def search(
    policy: Policy,
    domain: Domain,
    accepted: Harness,
    config: SearchSettings,
    archive: Archive,
    proposer: Proposer,
    ledger: Ledger,
    progress: Progress,
    seed: int,
    key: str,
    over: Callable[[Sequence[float]], str] = lambda means: "",
) -> Harness:
    """One harness phase: from the accepted harness to the next.

    `key` names the phase in ledger and archive ("cycle 1 search") and is unique in a run; `seed` decides sampling and
    proposals. The phase ends before all rounds are played where `over` says why, of the accepted harness's mean after
    each of those so far. Returns `accepted` itself when nothing better was found, otherwise an untrusted harness.
    Raises `UserError` for a policy that answers nothing and for what a proposer cannot work without (a key, say).
    """
    tasks, _ = split_tasks(domain.splits.harness, config.shadow, config.tasks)
    phase = Phase(key, ScoreKey(policy.weights_hash, tasks.hash, seed), config.edits)
    done = [r for r in archive.rounds if r.phase == key]
    now, means = done[-1].accepted if done else accepted.hash, [r.accepted_mean for r in done]
    if not done or (len(done) < config.rounds and not over(means)):
        null = NullTest(domain, tasks, seed, accepted)
        work = _Phase(policy, domain, accepted, config, archive, proposer, ledger, progress, seed, phase, tasks, null)
        archive.add(accepted.source, "Where the search starts from.", (), (), f"{key} start")
        archive.begin(phase, now)
        for scored_under in (phase.score_key, fresh(phase.score_key)):
            archive.mend(scored_under, [task.id for task in tasks])
        work.score(archive[accepted.hash], accepted, f"{key} baseline")
        for place, old in enumerate(archive.best_before(phase.score_key, config.rescore, accepted.hash), 1):
            work.try_out(old, f"{key} rescore {place}")
        null.recorded = _recorded(archive, accepted.hash, phase.score_key)
        for number in range(len(done) + 1, config.rounds + 1):
            now = work.round(number, now)
            means.append(archive.rounds[-1].accepted_mean)
            if over(means):
                break
    return accepted if now == accepted.hash else archive.harness(now)


def _recorded(archive: Archive, start: str, key: ScoreKey) -> list[Episode]:
    """The start's episodes, by which candidates are gated and audited. Raises `UserError` where any is missing."""
    found, played = archive.episodes(start, key), archive[start].scores[str(key)].n
    if len(found) != played:
        raise UserError(
            f"{archive.files(start) / EPISODES} has {len(found)} of {played} episodes, and without them no candidate "
            "can be gated: put back a copy of it, or search in another folder"
        )
    return found


@dataclass
class _Phase:
    """What the steps of a phase share."""

    policy: Policy
    domain: Domain
    start: Harness
    config: SearchSettings
    archive: Archive
    proposer: Proposer
    ledger: Ledger
    progress: Progress
    seed: int
    phase: Phase
    tasks: TaskSet
    null: NullTest

    def round(self, number: int, accepted: str) -> str:
        """Propose, gate, evaluate, accept; the hash of the accepted harness."""
        name = f"{self.phase.key} round {number}"
        tried: list[Tried] = []
        notes: list[str] = []
        for ask in range(self.config.refills + 1):
            wanted = self.config.candidates - sum(t.mean is not None for t in tried)
            if not wanted or (notes and notes[-1]):
                break
            asked = self.propose(number, ask, wanted, f"{name} proposer" + (f" refill {ask}" if ask else ""))
            tried += [self.candidate(p, f"{name} candidate {i}") for i, p in enumerate(asked.proposals, len(tried) + 1)]
            notes.append(asked.note)
        key = self.phase.score_key
        now = self.accept(accepted, name)
        tried = [msgspec.structs.replace(t, gate=self.archive[t.hash].gate) if t.mean is not None else t for t in tried]
        score = self.archive[now].scores[str(key)]
        news = "kept" if now == accepted else "new"
        self.progress.say(
            f"{name}: accepted {now} ({news}) at {score.mean:.3f} ± {1.96 * score.se:.3f} on {score.n} tasks"
        )
        self.archive.finish_round(
            Round(
                self.phase.key,
                number,
                tried,
                now,
                score.mean,
                "; ".join(filter(None, notes)),
                estimated_optimism(self.archive, key),
                again.mean if (again := self.archive[now].scores.get(str(fresh(key)))) else None,
            )
        )
        return now

    def accept(self, accepted: str, name: str) -> str:
        """The hash of the harness to go on with. One that scores without the model is not it, but refused."""
        key, level = self.phase.score_key, self.config.level if self.config.acceptance == "paired" else None
        while (now := choose(self.archive, key, accepted, level)) != accepted:
            if level is not None and self._confirmed(name) not in (None, now):
                return accepted
            caught = blind_findings(self.null, self.archive.harness(now), self.archive.episodes(now, key))
            if level is not None and not caught:
                caught = self.confirm(now, accepted, name)
            if caught:
                self.archive.refuse(now, caught)
                self.progress.say(f"{name}: {now} refused, {caught[0]}")
            elif choose(self.archive, key, accepted, level) == now:
                break
        return now

    def confirm(self, rival: str, accepted: str, name: str) -> list[Finding]:
        """The rival and the accepted harness play the tasks again under fresh seeds. Why the rival is to be refused."""
        key = fresh(self.phase.score_key)
        for hash, unit in ((accepted, f"{name} confirmation of the accepted"), (rival, f"{name} confirmation")):
            harness = self.start if hash == self.start.hash else self.archive.harness(hash)
            self.score(self.archive[hash], harness, unit, key)
        p = p_value(self.archive, key, rival, accepted)
        verdict = "confirmed" if p <= self.config.level else "not confirmed"
        self.progress.say(f"{name}: {rival} {verdict} under fresh seeds, p = {p:.3g} (level {self.config.level:g})")
        return provenance_findings(self.archive.episodes(rival, key))

    def _confirmed(self, name: str) -> str | None:
        """The rival that this round has paid to confirm, if there is one already: it may be resumed after a kill."""
        key, unit = str(fresh(self.phase.score_key)), f"{name} confirmation"
        paid = (c.hash for c in self.archive.candidates if key in c.scores and c.scores[key].unit == unit)
        return next(paid, None)

    def propose(self, number: int, ask: int, wanted: int, unit: str) -> Proposals:
        """What the proposer hands in, asked again a bounded number of times when it fails; kept for a resumed run."""
        asked = self.archive.proposals(self.phase.key, number, ask)
        if asked is None:
            before, begun = self.proposer.cost, time.perf_counter()
            heard = len(self.proposer.exchanges)
            try:
                proposals, note = self._ask(number, ask, wanted, unit)
            finally:  # what was said is kept whatever came of it
                self.archive.keep_exchanges(self.phase.key, number, ask, self.proposer.exchanges[heard:])
            if note:
                self.progress.say(f"{unit}: {note}")
            seconds = round(time.perf_counter() - begun, 3)
            asked = Proposals(proposals[:wanted], self.proposer.cost - before, seconds, note)
            self.archive.keep_proposals(self.phase.key, number, ask, asked)
        cost = asked.cost
        self.ledger.add(
            Spent(
                unit,
                "proposer",
                prompt_tokens=cost.prompt_tokens,
                sampled_tokens=cost.sampled_tokens,
                seconds=asked.seconds,
                dollars=cost.dollars,
            )
        )
        return asked

    def _ask(self, number: int, ask: int, wanted: int, unit: str) -> tuple[list[Proposal], str]:
        failure = ""
        for attempt in range(self.config.retries + 1):
            digest = hashlib.sha256(f"{self.seed}/{self.phase.key}/{number}/{ask}/{attempt}".encode()).digest()
            try:
                found = self.proposer.propose(self.archive, wanted, int.from_bytes(digest[:6], "big"))
                few = f"proposer {self.proposer.name} gave {len(found)} candidates of {wanted}"
                return found, few if len(found) < wanted else ""
            except ProposerSpent as error:
                return [], f"proposer {self.proposer.name} failed: {error}"
            except ProposerError as error:
                failure = str(error)
            if attempt < self.config.retries:
                wait = self.config.backoff * 2**attempt
                self.progress.say(f"{unit}: {self.proposer.name} failed ({failure}); asked again in {wait:g} s")
                time.sleep(wait)
        return [], f"proposer {self.proposer.name} failed {self.config.retries + 1} times, last: {failure}"

    def candidate(self, proposal: Proposal, unit: str) -> Tried:
        """Gate one proposal, file it and, if it passed, score it. What it scored with has to be the model's."""
        key = self.phase.score_key
        refused = gate(proposal, self.archive, key, unit, self.domain, gate_episodes(self.null.recorded))
        known = self.archive.with_tree(tree_hash(proposal.source))
        candidate = known or self.archive.add(
            proposal.source, proposal.hypothesis, proposal.parents, proposal.axes, unit, refused
        )
        mean = None
        if not refused:
            mean, refused = self.try_out(candidate, unit, proposal.hypothesis)
        if refused:
            self.progress.say(f"{unit}: refused, {refused[0]}")
        return Tried(candidate.hash, proposal.hypothesis, str(refused[0]) if refused else "", mean)

    def try_out(self, candidate: Candidate, unit: str, hypothesis: str = "") -> tuple[float, list[Finding]]:
        """Score a candidate; its mean, and why it is refused, if what it scored with was not the model's."""
        harness = self.archive.harness(candidate.hash)
        mean = self.score(candidate, harness, unit, hypothesis=hypothesis, races=self.config.racing)
        refused = provenance_findings(self.archive.episodes(candidate.hash, self.phase.score_key))
        if refused:
            self.archive.refuse(candidate.hash, refused)
        return mean, refused

    def score(
        self,
        candidate: Candidate,
        harness: Harness,
        unit: str,
        key: ScoreKey | None = None,
        hypothesis: str = "",
        races: bool = False,
    ) -> float:
        """A candidate's mean under `key` (by default the phase's), played if it is not on file.

        One that `races` against the others may be dropped before it has played all tasks.
        """
        key = key or self.phase.score_key
        if str(key) not in candidate.scores:
            self.progress.begin(unit, len(self.tasks))
            race = None
            if races:  # the best comes first
                others = [self.archive.outcomes(c.hash, key) for c in self.archive.scored(key)]
                race = Race(others[0], others, len(self.tasks))
            score, episodes = evaluate(
                self.policy, self.domain, harness, self.tasks, key.seed, unit, self.progress, race
            )
            self.archive.record(candidate.hash, key, score, episodes)
        score = candidate.scores[str(key)]
        self.ledger.add(spent(score, "search"))
        first_line = hypothesis.strip().partition("\n")[0]
        self.progress.score(score.mean)
        self.progress.say(
            f"{unit}: {candidate.hash} {score.mean:.3f}, {score.turns:.1f} turns"
            + (f", dropped after {score.n} tasks" if score.dropped else "")
            + (f" · {first_line}" if first_line else "")
        )
        return score.mean
