"""What a candidate must pass before its rollouts are paid for: the contract, and what of the audit costs nothing.

The layers that need hundreds of episodes wait until a candidate would be accepted (`whale_train.meta_harness.search`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from whale_envs import Domain, Episode, Harness, HarnessEnv, Reply
from whale_envs.harness.audit import Finding, provenance, static_findings
from whale_envs.harness.jail import Jail
from whale_envs.harness.load import HarnessSourceError
from whale_train.meta_harness.archive import Archive, tree_hash
from whale_train.meta_harness.prompt_only import refused_edit
from whale_train.meta_harness.proposers.base import Proposal
from whale_train.meta_harness.records import ScoreKey

#: Recorded tasks that a candidate plays at the gate.
GATE_TASKS = 3


def gate(
    proposal: Proposal, archive: Archive, key: ScoreKey, born: str, domain: Domain, recorded: Sequence[Episode]
) -> list[Finding]:
    """Why a proposal is refused, empty when it is not: the findings of the first check that it does not pass. Costs a
    few milliseconds of CPU and no model call.

    It must parse and differ in its syntax tree from every archived candidate that was refused or has a score under
    `key` (but for what `born`, the unit at work, has filed: it may be resumed after a kill). It may change no more than
    the phase allows. Its source must pass the static audit. On the `recorded` tasks it must keep the contract twice,
    with the recorded replies and with a model that says nothing, and what it answers right must be the model's. And it
    must not play every episode of a parent just as the parent did, since that score is known.
    """
    try:
        harness = Harness(proposal.source, name="candidate", trusted=False)
    except HarnessSourceError as error:
        return [Finding("contract", str(error))]
    twin = archive.with_tree(tree_hash(proposal.source))
    if twin and twin.born != born and (twin.gate or ((scored := twin.scores.get(str(key))) and scored.unit != born)):
        refused = f", refused: {twin.gate}" if twin.gate else ""
        return [Finding("contract", f"the same program as {twin.hash}{refused}")]
    if refused := refused_edit(archive, proposal.source):
        return [Finding("contract", refused)]
    jail = Jail(harness)
    try:
        return next((found for found in _checks(proposal, harness, jail, archive, key, domain, recorded) if found), [])
    finally:
        jail.close()


def _checks(
    proposal: Proposal,
    harness: Harness,
    jail: Jail,
    archive: Archive,
    key: ScoreKey,
    domain: Domain,
    recorded: Sequence[Episode],
) -> Iterator[list[Finding]]:
    """The findings of each check, in order of cost."""
    yield static_findings(harness, domain.splits.harness)
    for episode in recorded:
        yield _plays(domain, harness, jail, episode, [c.reply for c in episode.calls])
        yield _plays(domain, harness, jail, episode, [])
    for parent in proposal.parents:
        played = archive.episodes(parent, key) if parent in archive else []
        if played and all(_same(domain, harness, jail, e) for e in played):
            yield [Finding("contract", f"it changes nothing in {len(played)} recorded episodes of {parent}")]


def gate_episodes(episodes: Sequence[Episode]) -> list[Episode]:
    """The recorded episodes to gate with: one that was solved, one that was not, the longest, then the first ones."""
    solved = [e for e in episodes if e.solved]
    failed = [e for e in episodes if not e.solved]
    longest = sorted(episodes, key=lambda e: -len(e.calls))
    wanted = [*solved[:1], *failed[:1], *longest[:1], *episodes]
    unique: dict[str, Episode] = {}
    for episode in wanted:
        unique.setdefault(episode.task_id, episode)
    return list(unique.values())[:GATE_TASKS]


def _plays(domain: Domain, harness: Harness, jail: Jail, episode: Episode, replies: list[Reply]) -> list[Finding]:
    """Play one recorded task with given replies, then silence; why it breaks the contract or solves by itself."""
    where = f"task {episode.task_id}"
    env = HarnessEnv(domain, harness=harness, split="harness", jail=jail)
    try:
        _, info = env.reset(seed=episode.seed, options={"task": episode.task_id})
        if info["ask"] is None:
            env.step("")
            assert env.episode is not None
            why = env.episode.failure.message if env.episode.failure else "it answers without asking the model"
            return [Finding("contract", why, where)]
        waiting = iter(replies)
        while not env.done:
            env.step(next(waiting, Reply("")))
        assert env.episode is not None
        if env.episode.failure:
            return [Finding("contract", env.episode.failure.message, where)]
        unearned = provenance(env.episode)
        return [unearned] if unearned else []
    finally:
        env.close()


def _same(domain: Domain, harness: Harness, jail: Jail, episode: Episode) -> bool:
    """Whether a harness asks and answers as a recorded episode does, given that episode's replies."""
    env = HarnessEnv(domain, harness=harness, split="harness", jail=jail)
    try:
        _, info = env.reset(seed=episode.seed, options={"task": episode.task_id})
        for call in episode.calls:
            if info["ask"] != call.ask():
                return False
            _, _, _, _, info = env.step(call.reply)
        return env.done and env.episode is not None and env.episode.answer == episode.answer
    finally:
        env.close()
