"""Sampling through environment and harness beside bare generation, lock-step batches and TRL's GRPO path.

A domain's tasks are played once to learn what is asked: each episode's prompts and their replies. Then, in processes of
their own that take turns, the same is sampled by

    rollout     `whale_train.rollout`: environment, harness, tools and policy
    bare        the same policy fed the recorded prompts in the same order, without environment and harness
    lock-step   transformers' `generate`, turn by turn in batches of 64, padded, until the last row has ended
    trl         `GRPOTrainer`'s own way from prompts to completions, on the same batches

and, with replies of a fixed length, rollouts of more episodes, more turns and longer replies.

    OMP_NUM_THREADS=1 python benchmarks/rollout/run.py --smollm2 DIR
"""

from __future__ import annotations

import json
import os
import pickle
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tyro
from systems import SYSTEMS, play, steady

HERE = Path(__file__).parent
#: Most that a rollout may take of what bare generation of the same takes.
TARGETS = {"tiny": 1.10, "smollm2": 1.05}
#: (episodes, turns, tokens a reply): each of the three grows by itself.
GROWTH = [(16, 1, 32), (64, 1, 32), (256, 1, 32), (64, 4, 32), (64, 16, 32), (64, 1, 128), (64, 1, 512)]


def main(smollm2: Path | None = None, rounds: int = 3, tasks: int = 64, repeats: int = 4) -> None:
    """Run the benchmark and write results.json beside this file.

    Args:
        smollm2: the folder of SmolLM2-135M-Instruct (see `tests/test_load_policy.py`); None leaves it out.
        rounds: how often each system is measured.
        tasks: tasks of the bundled model, and how often each is played.
        repeats: see `tasks`.
    """
    load = os.getloadavg()[0]
    models = [("tiny", "tiny", domain, tasks, repeats) for domain in ("search-qa", "math", "chess")]
    if smollm2 is not None:
        models.append(("smollm2", f"hf:{smollm2}", "search-qa", 8, 2))
    sampling, told = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for name, policy, domain, number, times in models:
            calls, runs = Path(folder) / f"{name}-{domain}", dict[str, list[dict[str, float]]]()
            about = alone("record", policy, domain, str(number), str(times), str(calls))
            for turn in range(rounds):
                for system in SYSTEMS[:: -1 if turn % 2 else 1]:
                    runs.setdefault(system, []).append(
                        alone(system, policy, domain, str(number), str(times), str(calls))
                    )
            sampling[f"{name} {domain}"] = {"workload": about, **{s: beside(runs[s], runs["rollout"]) for s in SYSTEMS}}
            slower = 1 / statistics.median(ratios(runs["bare"], runs["rollout"]))
            met = "met" if slower <= TARGETS[name] else "missed"
            told[f"{name} {domain}: rollout / bare"] = f"{slower:.3f}, at most {TARGETS[name]}: {met}"
            print(f"{name} {domain}", json.dumps(sampling[f"{name} {domain}"], indent=2), flush=True)
    growth = [
        dict(zip(("episodes", "turns", "tokens"), size, strict=True)) | alone("steady", *map(str, size))
        for size in GROWTH
    ]
    command = " ".join(["OMP_NUM_THREADS=1 python benchmarks/rollout/run.py", *sys.argv[1:]])
    results = {
        "command": command.replace(str(smollm2), "DIR"),
        "machine": f"{platform.machine()}, {os.cpu_count()} processors, load {load:.1f} before",
        "versions": {p: version(p) for p in ("torch", "transformers", "trl")},
        "unit": "wall seconds, and how many times the rollout's of the same round: median [least, most]; processor "
        "seconds of the sampling process; MiB at most, above the process before sampling",
        "target": told,
        "sampling": sampling,
        "growth": growth,
    }
    (HERE / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    print(json.dumps({"target": told, "growth": growth}, indent=2))


def alone(system: str, *args: str) -> dict[str, float]:
    """One measurement, in a process of its own."""
    command = [sys.executable, __file__, "--measure", system, *args]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{system} ended with status {done.returncode}: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def beside(runs: list[dict[str, float]], rollouts: list[dict[str, float]]) -> dict[str, str]:
    """A system's figures: median, least and most."""
    return {
        "seconds": spread([run["seconds"] for run in runs]),
        "to_rollout": spread(ratios(runs, rollouts)),
        "cpu_seconds": spread([run["cpu_seconds"] for run in runs]),
        "tokens_per_second": spread([run["tokens"] / run["seconds"] for run in runs], 0),
        "peak_mib": spread([run["mib"] for run in runs], 0),
    }


def ratios(runs: list[dict[str, float]], rollouts: list[dict[str, float]]) -> list[float]:
    """How many times as long as the rollout of the same round, for as many sampled tokens."""
    pace = [run["seconds"] / run["tokens"] for run in runs]
    return [p / (r["seconds"] / r["tokens"]) for p, r in zip(pace, rollouts, strict=True)]


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Median, least and most."""
    return f"{statistics.median(values):.{digits}f} [{min(values):.{digits}f}, {max(values):.{digits}f}]"


def measure(system: str, args: list[str]) -> None:
    """Do one measurement and print what it took."""
    if system == "steady":
        print(json.dumps(timed(*steady(*map(int, args)))))
        return
    policy, domain, tasks, repeats, path = args
    if system == "record":
        chains = play("rollout", policy, domain, int(tasks), int(repeats), None)[1]()
        Path(path).write_bytes(pickle.dumps(chains))
        calls = [call for chain in chains for call in chain]
        lengths = sorted(len(reply.completion_ids or ()) for _, reply in calls)
        about = {"episodes": len(chains), "calls": len(calls), "shortest": lengths[0], "longest": lengths[-1]}
        about["prompt_tokens_per_call"] = round(sum(len(r.prompt_ids or ()) for _, r in calls) / len(calls))
        print(json.dumps(about | {"sampled_tokens_per_call": round(sum(lengths) / len(lengths), 1)}))
        return
    chains = pickle.loads(Path(path).read_bytes())
    print(json.dumps(timed(*play(system, policy, domain, int(tasks), int(repeats), chains))))


def timed(tokens_of: Any, work: Any) -> dict[str, float]:
    """What `work` took, and the tokens that it sampled."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cpu, wall = time.process_time(), time.perf_counter()
    result = work()
    took = {"cpu_seconds": time.process_time() - cpu, "seconds": time.perf_counter() - wall}
    mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return {**took, "tokens": tokens_of(result), "mib": mib}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(sys.argv[2], sys.argv[3:])
    else:
        tyro.cli(main)
