"""Ways to run a small program that nobody trusts: a new interpreter, a new one in bubblewrap, and `run_python`.

In each round each way runs the plain program and the one with sympy, first one after the other (latency), then by as
many callers as there are processors (jobs a second); the ways take turns, so that what else the machine does meets all
of them. Then cells of a session, and 1,000 jobs in a row with what they left behind.

    OMP_NUM_THREADS=1 python benchmarks/sandbox/run.py
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tyro

from whale_envs.sandbox import isolation, tier
from whale_envs.tools.python_tool import python_session, run_python

PROGRAMS = {
    "plain": ("print(sum(n * n for n in range(100)))", "328350\n"),
    "sympy": ("import sympy\nprint(sympy.factorint(10**9 + 6))", "{2: 1, 500000003: 1}\n"),
}
PROCESSORS = len(os.sched_getaffinity(0))


def main(rounds: int = 5, jobs: int = 200, cold_jobs: int = 8, cells: int = 2000, row: int = 1000) -> None:
    """Run the benchmark and write results.json beside this file.

    Args:
        rounds: how often everything is measured.
        jobs: jobs of `run_python` in each half of a round.
        cold_jobs: jobs of a new interpreter in each half of a round.
        cells: cells of a session in each round.
        row: jobs in a row for the count of what is left behind.
    """
    first = {name: timed(lambda name=name: run_python(PROGRAMS[name][0])) for name in PROGRAMS}
    ways = {"run_python": (lambda code: run_python(code).stdout, jobs), "cold subprocess": (cold([]), cold_jobs)}
    if bwrap := list(isolation.isolation().bwrap):
        ways["cold bubblewrap"] = (cold(bwrap), cold_jobs)
    measured: dict[tuple[str, str], list[dict[str, Any]]] = {}
    in_session: list[list[float]] = []
    for _ in range(rounds):
        for program, (code, expected) in PROGRAMS.items():
            for way, (run, count) in ways.items():
                measured.setdefault((program, way), []).append(measure(run, code, expected, count))
        in_session.append(session(cells))
    programs = {
        program: {way: summary(measured[program, way], measured[program, "run_python"]) for way in ways}
        for program in PROGRAMS
    }
    if bwrap:
        for figures in programs.values():
            del figures["cold bubblewrap"]["cpu_ms_a_job"]  # its init keeps the times of its children to itself
    results = {
        "command": " ".join(["python", "benchmarks/sandbox/run.py", *sys.argv[1:]]),
        "machine": f"{platform.machine()}, {PROCESSORS} processors, Linux {platform.release()}",
        "tier": tier(),
        "versions": {"python": platform.python_version(), **{p: version(p) for p in ("sympy", "landlockpy")}},
        "rounds": rounds,
        "first_call_seconds": first,
        "programs": programs,
        "session_ms_a_cell": {"p50": spread([p50(r) for r in in_session]), "p95": spread([p95(r) for r in in_session])},
        "jobs_in_a_row": {"jobs": row, **left_behind(row)},
    }
    Path(__file__).with_name("results.json").write_text(json.dumps(results, indent=2) + "\n")
    print(json.dumps(results, indent=2))


def cold(prefix: list[str]) -> Callable[[str], str]:
    """Runs code in an interpreter started for it, by the command that begins with `prefix`."""

    def run(code: str) -> str:
        command = [*prefix, sys.executable, "-I", "-c", code]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    return run


def measure(run: Callable[[str], str], code: str, expected: str, count: int) -> dict[str, Any]:
    """Latencies in ms with one caller, and jobs a second with one caller a processor."""

    def one(_: int) -> float:
        start = time.perf_counter()
        assert run(code) == expected
        return (time.perf_counter() - start) * 1000

    cpu = cpu_seconds()
    alone = [one(n) for n in range(count)]
    cpu = cpu_seconds() - cpu
    with ThreadPoolExecutor(PROCESSORS) as executor:
        start = time.perf_counter()
        together = list(executor.map(one, range(count)))
        seconds = time.perf_counter() - start
    return {"alone": alone, "together": together, "rate": count / seconds, "cpu": cpu * 1000 / count}


def summary(rounds: list[dict[str, Any]], ours: list[dict[str, Any]]) -> dict[str, Any]:
    """A way's figures over all rounds, and how many times as many jobs `run_python` did in the same round."""
    alone, together = [r["alone"] for r in rounds], [r["together"] for r in rounds]
    return {
        "jobs_a_second": spread([r["rate"] for r in rounds]),
        "ms_one_caller": {"p50": spread([*map(p50, alone)]), "p95": spread([*map(p95, alone)])},
        "ms_all_callers": {"p50": spread([*map(p50, together)]), "p95": spread([*map(p95, together)])},
        "cpu_ms_a_job": spread([r["cpu"] for r in rounds]),
        "run_python_is_times_as_fast": spread([o["rate"] / r["rate"] for o, r in zip(ours, rounds, strict=True)]),
    }


def session(cells: int) -> list[float]:
    """ms of each cell of a session."""
    took = []
    with python_session() as one:
        run_python("x = 1", session=one)
        for _ in range(cells):
            start = time.perf_counter()
            run_python("x + 1", session=one)
            took.append((time.perf_counter() - start) * 1000)
    return took


def left_behind(jobs: int) -> dict[str, Any]:
    """What this process and its zygotes hold before and after some more jobs."""
    codes = [code for code, _ in PROGRAMS.values()]
    before = held()
    for n in range(jobs):
        run_python(codes[n % 2])
    after = held()
    return {name: {"before": before[name], "after": after[name]} for name in before}


def held() -> dict[str, int]:
    """Processes below this one, open descriptors and resident memory of this process and those."""
    time.sleep(0.2)  # a result is out before its job is tidied away
    pids = tree()
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return {
        "processes": len(pids),
        "descriptors": sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids),
        "resident_mb": pages * os.sysconf("SC_PAGE_SIZE") >> 20,
    }


def tree() -> list[int]:
    """This process and all below it."""
    pids = [os.getpid()]
    for pid in pids:
        for children in Path("/proc").glob(f"{pid}/task/*/children"):
            with contextlib.suppress(FileNotFoundError):  # the thread has just ended
                pids += map(int, children.read_text().split())
    return pids


def cpu_seconds() -> float:
    """Processor time of the tree so far, with that of processes that have ended (in ticks of 10 ms)."""
    time.sleep(0.1)  # a result is out before its job is tidied away
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in tree()]
    return sum(sum(map(int, f[11:15])) for f in fields) / os.sysconf("SC_CLK_TCK")


def timed(work: Callable[[], Any]) -> float:
    """Seconds that `work` takes."""
    start = time.perf_counter()
    work()
    return round(time.perf_counter() - start, 3)


def p50(values: list[float]) -> float:
    """The median."""
    return statistics.median(values)


def p95(values: list[float]) -> float:
    """The 95th percentile."""
    return statistics.quantiles(values, n=20, method="inclusive")[-1]


def spread(values: list[float]) -> dict[str, float]:
    """Median, least and greatest over the rounds."""
    return {"median": round(p50(values), 2), "min": round(min(values), 2), "max": round(max(values), 2)}


if __name__ == "__main__":
    tyro.cli(main)
