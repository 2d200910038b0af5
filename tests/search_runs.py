"""Short harness phases for tests, with agents that need no model."""

from __future__ import annotations

import re
from pathlib import Path

import zstandard
from scripted_agents import searcher

from whale_envs import Domain, Harness
from whale_envs.harness.load import load_harness
from whale_train.ledger import Ledger
from whale_train.meta_harness.archive import Archive
from whale_train.meta_harness.proposers.base import Proposal, Proposer
from whale_train.meta_harness.proposers.mutation import MutationProposer
from whale_train.meta_harness.search import SearchSettings, search
from whale_train.policies.base import Policy
from whale_train.policies.scripted import ScriptedPolicy
from whale_train.progress import Silent

CONFIG = SearchSettings(rounds=2, candidates=2, tasks=6, backoff=0)
H0 = load_harness("h0", "search-qa")
SEED = 3


def rewording(word: str) -> Proposal:
    """A harness that differs from h0 by a word before the question, which tells a policy which one it is."""
    return Proposal(H0.source.replace("Question:", f"{word} question:"), f"{word}.", (H0.hash,))


class Told(Silent):
    """Keeps the lines that a search says."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


def run(
    domain: Domain,
    folder: Path,
    proposer: Proposer | None = None,
    config: SearchSettings = CONFIG,
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
    """Every file of a run, unpacked, times apart."""
    found = {str(p.relative_to(folder)): _text(p) for p in sorted(folder.rglob("*")) if p.is_file()}
    return {name: re.sub(r'"seconds":\s*[0-9.e-]+', '"seconds":0', text) for name, text in found.items()}


def _text(path: Path) -> str:
    if path.suffix == ".zst":
        return zstandard.decompress(path.read_bytes()).decode()
    return path.read_text()
