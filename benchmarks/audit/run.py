"""What the audit costs a search: the default demo's harness phase, with the audit's parts timed within it.

A phase with the bundled model and the mutation proposer, one a domain and seed. Seconds are processor time of this
process and all below it, which holds on a busy machine too, and wall-clock time. "share" is the audit's part over all
the rest: by how much the audit makes a search longer.

    OMP_NUM_THREADS=1 python benchmarks/audit/run.py
"""

from __future__ import annotations

import json
import os
import platform
import resource
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tyro

from whale_envs import load_domain, sandbox
from whale_envs.harness.load import load_harness
from whale_train.config import RunConfig
from whale_train.ledger import Ledger
from whale_train.meta_harness import gate, search
from whale_train.meta_harness.archive import Archive
from whale_train.meta_harness.proposers.mutation import MutationProposer
from whale_train.policies.load import load_policy
from whale_train.progress import Silent

DOMAINS = ("search-qa", "math", "chess")
#: The audit's parts, where a search calls them.
PARTS = {
    "static": (gate, "static_findings"),
    "provenance of three replays": (gate, "provenance"),
    "provenance of all episodes": (search, "provenance_findings"),
    "null model and canaries": (search, "blind_findings"),
}
Seconds = tuple[float, float]


def clock() -> Seconds:
    """Processor seconds, of this process and of those below it that have ended, and wall-clock seconds."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used), time.perf_counter()


def timed(work: Callable[..., Any], spent: list[Seconds]) -> Callable[..., Any]:
    """`work`, which notes in `spent` what each call of it took."""

    def call(*args: Any) -> Any:
        before = clock()
        try:
            return work(*args)
        finally:
            spent.append((clock()[0] - before[0], clock()[1] - before[1]))

    return call


def phase(name: str, seed: int) -> dict[str, list[Seconds]]:
    """A harness phase as the default demo has it; what each part took, call by call, and "search" for all of it."""
    domain, policy, config = load_domain(name), load_policy("tiny", name), RunConfig(domain=name)
    spent: dict[str, list[Seconds]] = defaultdict(list)
    kept = {part: getattr(*where) for part, where in PARTS.items()}
    for part, (module, function) in PARTS.items():
        setattr(module, function, timed(kept[part], spent[part]))
    try:
        with tempfile.TemporaryDirectory() as folder:
            archive, ledger = Archive(Path(folder) / "archive", name), Ledger(Path(folder) / "ledger.jsonl")
            settings, start = config.search, load_harness("h0", name)
            whole = timed(search.search, spent["search"])
            whole(policy, domain, start, settings, archive, MutationProposer(), ledger, Silent(), seed, "search")
    finally:
        for part, (module, function) in PARTS.items():
            setattr(module, function, kept[part])
    return spent


def summary(phases: list[dict[str, list[Seconds]]], at: int) -> dict[str, Any]:
    """The figures of one domain by one clock (0: processor, 1: wall), in seconds a phase."""
    sums = [{part: sum(s[at] for s in spent) for part, spent in found.items()} for found in phases]
    audits = [sum(total[part] for part in PARTS) for total in sums]
    shares = [audit / (total["search"] - audit) for audit, total in zip(audits, sums, strict=True)]
    parts = {part: round(statistics.median(total[part] for total in sums), 3) for part in ("search", *PARTS)}
    return {"share": {"median": round(statistics.median(shares), 4), "all": [round(s, 4) for s in shares]}, **parts}


def main(seeds: int = 3) -> None:
    """Run the benchmark and write results.json beside this file."""
    results: dict[str, Any] = {
        "command": " ".join(["python", "benchmarks/audit/run.py", *sys.argv[1:]]),
        "machine": f"{platform.machine()}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} before"
        + ", real-time priority" * (os.sched_getscheduler(0) == os.SCHED_FIFO),
        "versions": {"python": platform.python_version(), "torch": version("torch"), "chess": version("chess")},
        "tier": sandbox.tier(),
        "unit": "seconds a harness phase (median over seeds)",
    }
    for name in DOMAINS:
        phases = [phase(name, seed) for seed in range(seeds)]
        calls = [len(found["null model and canaries"]) for found in phases]
        results[name] = {
            "processor": summary(phases, 0),
            "wall": summary(phases, 1),
            "candidates": [len(found["static"]) for found in phases],
            "audits before acceptance": calls,
        }
    Path(__file__).with_name("results.json").write_text(json.dumps(results, indent=2) + "\n")
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    tyro.cli(main)
