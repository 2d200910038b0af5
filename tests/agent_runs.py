"""What the tests of proposers that are agents share: an archive with something to read, and rounds of a search."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scripted_agents import searcher

from whale_envs.domains import load_domain
from whale_envs.harness.load import load_harness
from whale_train.ledger import Ledger
from whale_train.meta_harness.archive import Archive
from whale_train.meta_harness.proposers.agent import Limits
from whale_train.meta_harness.search import SearchSettings, search
from whale_train.policies.scripted import ScriptedPolicy
from whale_train.progress import Silent

DOMAIN = load_domain("search-qa")
H0 = load_harness("h0", "search-qa")
FAST = Limits(backoff=0.0, silence=60.0, retries=2)
SNIPPETS = H0.source.replace("p.head(WORDS)", "p.snippets(task.question, 3)")
TURNS = H0.source.replace("TURNS = 3", "TURNS = 6")


def run_search(folder: Path, proposer: Any, config: SearchSettings) -> Archive:
    """A search in a folder; its archive."""
    archive = Archive(folder / "archive", "search-qa")
    ledger = Ledger(folder / "ledger.jsonl")
    policy = ScriptedPolicy(searcher, "searcher")
    search(policy, DOMAIN, H0, config, archive, proposer, ledger, Silent(), 3, "search")
    return archive


def played_archive(folder: Path) -> Path:
    """The folder of an archive with h0 and its episodes, not to be written to again."""
    return run_search(folder, None, SearchSettings(rounds=0, tasks=6)).folder


def results(request: dict[str, Any]) -> list[tuple[bool, str]]:
    """(is an error, what was shown) of the tool results in the last message of a request to the Messages API."""
    last = request["messages"][-1]["content"]
    return [(b.get("is_error", False), b["content"]) for b in last if b["type"] == "tool_result"]
