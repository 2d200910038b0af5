"""Short harness phases for tests: with agents that need no model, and proposers that hand in what they are given."""

from __future__ import annotations

import re
from pathlib import Path

from scripted_agents import searcher

from whale_envs import Domain, Harness
from whale_envs.harness.load import load_harness
from whale_train.ledger import Ledger
from whale_train.meta_harness.archive import Archive
from whale_train.meta_harness.proposers.base import Cost, Proposal, Proposer
from whale_train.meta_harness.proposers.mutation import MutationProposer
from whale_train.meta_harness.search import SearchConfig, search
from whale_train.policies.base import Policy
from whale_train.policies.scripted import ScriptedPolicy
from whale_train.progress import Silent

CONFIG = SearchConfig(rounds=2, candidates=2, tasks=6, backoff=0)
H0 = load_harness("h0", "search-qa")
SEED = 3


class Told(Silent):
    """Keeps the lines that a search says."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


class ListProposer:
    """Hands in what it was given, one list an ask; an exception in its place is raised."""

    name = "list"
    cost = Cost()
    exchanges = ()

    def __init__(self, *asks: list[Proposal] | Exception) -> None:
        self.asks = list(asks)
        self.asked = 0

    def propose(self, archive: Archive, count: int, seed: int) -> list[Proposal]:
        self.asked += 1
        now = self.asks.pop(0) if self.asks else []
        if isinstance(now, Exception):
            raise now
        return now


class RoundProposer(ListProposer):
    """Hands in the list that belongs to the archive's round, as often as it is asked: a kill does not lose one."""

    def propose(self, archive: Archive, count: int, seed: int) -> list[Proposal]:
        self.asked += 1
        now = self.asks[len(archive.rounds)]
        assert not isinstance(now, Exception)
        return now


def run(
    domain: Domain,
    folder: Path,
    proposer: Proposer | None = None,
    config: SearchConfig = CONFIG,
    policy: Policy | None = None,
    key: str = "search",
    accepted: Harness = H0,
) -> tuple[Harness, Policy, Told]:
    """A harness phase in `folder`, or what is left of it."""
    policy, told = policy or ScriptedPolicy(searcher, "searcher"), Told()
    accepted = search(
        policy, domain, accepted, config, Archive(folder / "archive", "search-qa"), proposer or MutationProposer(),
        Ledger(folder / "ledger.jsonl"), told, seed=SEED, key=key,
    )  # fmt: skip
    return accepted, policy, told


def files(folder: Path) -> dict[str, str]:
    """Every file of a run, times apart."""
    found = {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}
    return {name: re.sub(r'"seconds":\s*[0-9.e-]+', '"seconds":0', text) for name, text in found.items()}
