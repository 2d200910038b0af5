"""What an environment adds to a step: time per step with a scripted policy, the tools' own time apart, beside peers.

Plays whole episodes of each domain's bundled world and says, per step: the time of `step`, the share of `reset`, what
of both the tools took (a search, a program, a board) and what the harness's own code takes when it is run by hand.
In process, 64 at a time in one vector env, and jailed. `peers.py` plays the same questions, replies and passages with
other libraries in their own Python. Rounds alternate, and a figure is the median over rounds.

    OMP_NUM_THREADS=1 python benchmarks/env_overhead/run.py --peers PEERS/bin/python
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium
import tyro

import whale_envs
from whale_envs import Domain, Harness, HarnessEnv, HarnessVectorEnv, Task, load_domain, load_harness
from whale_envs.domains.math_code import MathCode
from whale_envs.errors import ToolUseError
from whale_envs.harness.helpers import ExecResult, ReplyView, TaskView
from whale_envs.harness.namespace import load_run

HERE = Path(__file__).parent
#: Most microseconds a step in process beyond the tool.
TARGET = 30.0
ILLEGAL = "<move>a1a1</move>"
Figures = dict[str, float]


def main(peers: Path | None = None, tasks: int = 256, rounds: int = 7, num_envs: int = 64) -> None:
    """Run the benchmark and write results.json beside this file.

    Args:
        peers: the Python of a virtual environment with the peers (see README.md); None leaves them out.
        tasks: episodes a round and row.
        rounds: how often every row is measured.
        num_envs: how many episodes at a time in the vector env.
    """
    domains = {name: offline(name) for name in whale_envs.DOMAINS}
    chosen = {name: domain.splits["test"][:tasks] for name, domain in domains.items()}
    scripts = {name: {t.id: script(name, t) for t in chosen[name]} for name in domains}
    measured: dict[str, list[Figures]] = {}
    with tempfile.TemporaryDirectory() as folder:
        workload = Path(folder) / "workload.json"
        workload.write_text(json.dumps(workload_of(domains, chosen, scripts)))
        for _ in range(rounds):
            for row, figures in ours(domains, chosen, scripts, num_envs):
                measured.setdefault(row, []).append(figures)
            for row, figures in theirs(peers, workload, num_envs):
                measured.setdefault(row, []).append(figures)
    results = {
        "command": " ".join(["python", "benchmarks/env_overhead/run.py", *sys.argv[1:]]),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "versions": {p: version(p) for p in ("gymnasium", "msgspec", "chess", "bm25s")} | peer_versions(peers),
        "unit": "microseconds per step: median over rounds [least, most]",
        "rows": {row: summary(figures) for row, figures in measured.items()},
    }
    (HERE / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    for row, figures in results["rows"].items():  # type: ignore[attr-defined]
        print(f"{row:48}" + "".join(f"  {name} {value}" for name, value in figures.items()))
    print(f"target: at most {TARGET:g} a step in process beyond the tool")


def offline(name: str) -> Domain:
    """The domain with its bundled world; programs are not run, since starting one takes longer than all the rest."""
    if name == "math":
        return MathCode(run_code=lambda code: ExecResult(code[len("print(") : -1] + "\n", "", "ok"))
    return load_domain(name)


def script(name: str, task: Task) -> list[str]:
    """What the policy replies, call after call: it knows the answer, and makes a mistake first at chess."""
    if name == "math":
        return [f"<python>print({task.gold})</python>", f"So the answer is \\boxed{{{task.gold}}}."]
    if name == "chess":
        return [ILLEGAL, *(f"<move>{uci}</move>" for uci in task.gold.line[::2])]
    words = task.shown["question"].removeprefix("What is the ").removesuffix("?").split(" of ")
    return [f"<search>{words[-1]}</search>", f"<search>{words[0]}</search>", f"<answer>{task.gold[0]}</answer>"]


def ours(
    domains: dict[str, Domain], chosen: dict[str, list[Task]], scripts: dict[str, dict[str, list[str]]], num_envs: int
) -> Iterator[tuple[str, Figures]]:
    """One round of our rows."""
    for name, domain in domains.items():
        for kind in ("h0", "strong"):
            harness = load_harness(kind, name)
            env = gymnasium.make(whale_envs.DOMAINS[name][2], domain=domain, harness=harness, split="test")
            yield f"whale {name} {kind}", one_by_one(env, chosen[name], scripts[name], harness)
            env.close()
        harness = load_harness("h0", name)
        yield f"whale {name} h0, vector of {num_envs}", side_by_side(domain, harness, scripts[name], num_envs)
        env = HarnessEnv(domain, harness=Harness(harness.source, "h0", trusted=False), split="test")
        yield f"whale {name} h0, jailed", one_by_one(env, chosen[name], scripts[name])
        env.close()


def one_by_one(
    env: gymnasium.Env[Any, Any], tasks: list[Task], scripts: dict[str, list[str]], harness: Harness | None = None
) -> Figures:
    """Figures of episodes one after the other; with those of a harness's own code when it is given."""
    steps, stepping, resetting, tooling, alone = 0, 0.0, 0.0, 0.0, 0.0
    clock = time.perf_counter
    for task in tasks:
        start = clock()
        _, info = env.reset(options={"task": task.id})
        resetting += clock() - start
        for reply in scripts[task.id]:
            start = clock()
            _, _, terminated, truncated, info = env.step(reply)
            stepping += clock() - start
            steps += 1
            if terminated or truncated:
                break
        tooling += sum(call.seconds for call in info["record"].tool_calls)
        if harness is not None:
            alone += by_hand(harness, task, info["record"])
    figures = {"step": stepping, "reset": resetting, "tool": tooling, "beyond_tool": stepping + resetting - tooling}
    if harness is not None:
        figures["harness_alone"] = alone
    return {name: 1e6 * seconds / steps for name, seconds in figures.items()}


def by_hand(harness: Harness, task: Task, record: whale_envs.Episode) -> float:
    """Seconds that the harness's own code takes for an episode: its generator, fed the recorded replies and results."""
    results = iter([call.result for call in record.tool_calls])
    refused = any("move" in reply.reply.text for reply in record.calls[:1])

    class Recorded:
        """Tools that give what they gave; the first move is refused again."""

        def __getattr__(self, name: str) -> Any:
            return self.call if name != "move" else self.move

        def call(self, *args: Any, **kwargs: Any) -> Any:
            return next(results)

        def move(self, move: Any) -> Any:
            nonlocal refused
            if refused:
                refused = False
                raise ToolUseError("not legal")
            return next(results)

    start = time.perf_counter()
    episode = load_run(harness.code, record.seed, lambda text: None)(TaskView(task.shown), Recorded())
    try:
        next(episode)
        for call in record.calls:
            episode.send(ReplyView(call.reply.text))
    except StopIteration:
        pass
    return time.perf_counter() - start


def side_by_side(domain: Domain, harness: Harness, scripts: dict[str, list[str]], num_envs: int) -> Figures:
    """Figures of a vector env, each of its steps being `num_envs` steps; the same tasks, dealt by it."""
    envs = HarnessVectorEnv(num_envs, domain, harness=harness, split="test")
    _, infos = envs.reset(seed=0)
    turns = [0] * num_envs
    steps, taken, tooling = 0, 0.0, 0.0
    while steps < 2 * len(scripts):
        replies = [scripts.get(task, [ILLEGAL] * 20)[turn] for task, turn in zip(infos["task_id"], turns, strict=True)]
        start = time.perf_counter()
        *_, terminations, truncations, infos = envs.step(replies)
        taken += time.perf_counter() - start
        steps += num_envs
        over = terminations | truncations
        turns = [0 if ended else turn + 1 for turn, ended in zip(turns, over, strict=True)]
        if over.any():
            ended = [record for record in infos["final_info"]["record"] if record is not None]
            tooling += sum(call.seconds for record in ended for call in record.tool_calls)
    envs.close()
    return {"step": 1e6 * taken / steps, "tool": 1e6 * tooling / steps, "beyond_tool": 1e6 * (taken - tooling) / steps}


def workload_of(
    domains: dict[str, Domain], chosen: dict[str, list[Task]], scripts: dict[str, dict[str, list[str]]]
) -> dict[str, Any]:
    """What the peers play: questions, answers, replies, and what a search finds."""
    search = domains["search-qa"].world(chosen["search-qa"][0]).tools["search"]
    found = {}
    for replies in scripts["search-qa"].values():
        for query in (r.removeprefix("<search>").removesuffix("</search>") for r in replies[:2]):
            found[query] = "\n".join(f"{p.title}\n{p.text}" for p in search(query, k=1)) or "Nothing\nfound."
    rows = {
        name: [{"question": t.shown["question"], "answer": gold_text(t), "replies": scripts[name][t.id]} for t in tasks]
        for name, tasks in chosen.items()
        if name != "chess"
    }
    return {"found": found, **rows}


def gold_text(task: Task) -> str:
    """The first accepted answer."""
    return str(task.gold[0] if isinstance(task.gold, list) else task.gold)


def theirs(peers: Path | None, workload: Path, num_envs: int) -> Iterator[tuple[str, Figures]]:
    """One round of the peers' rows."""
    if peers is None:
        return
    done = subprocess.run(
        [str(peers), str(HERE / "peers.py"), str(workload), str(num_envs)], capture_output=True, text=True, check=True
    )
    yield from json.loads(done.stdout.splitlines()[-1]).items()


def peer_versions(peers: Path | None) -> dict[str, str]:
    """The peers' versions."""
    if peers is None:
        return {}
    names = ["gem-llm", "textarena", "verifiers"]
    code = f"from importlib.metadata import version; print(*map(version, {names}))"
    done = subprocess.run([str(peers), "-c", code], capture_output=True, text=True, check=True)
    return dict(zip(names, done.stdout.split(), strict=True))


def summary(figures: list[Figures]) -> dict[str, str]:
    """Median, least and most of each figure."""
    told = {}
    for name in figures[0]:
        values = [f[name] for f in figures]
        told[name] = f"{statistics.median(values):.1f} [{min(values):.1f}, {max(values):.1f}]"
    return told


if __name__ == "__main__":
    tyro.cli(main)
