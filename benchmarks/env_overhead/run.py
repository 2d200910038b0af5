"""What an environment adds to a step: time per step with a scripted policy, the tools' own time apart, beside peers.

Plays whole episodes of each domain's bundled world: in process, 64 side by side (ours, and Gymnasium's own vector
env), and jailed; then an episode of 64 turns, to see whether a step gets dearer as it goes on. `peers.py` plays the
same questions, replies and passages with other libraries in their own Python. Rounds alternate; a figure is the
median over rounds with the least and the most, and so is a ratio, of two figures of one round.

    OMP_NUM_THREADS=1 python benchmarks/env_overhead/run.py --peers PEERS/bin/python
"""

from __future__ import annotations

import functools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium
import tyro
from figures import TURNS, Episode, Figures, Tools, blocks, clock, medians
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import whale_envs
from whale_envs import Domain, Harness, HarnessEnv, HarnessVectorEnv, Task, load_domain, load_harness
from whale_envs.domains.math_code import MathCode
from whale_envs.errors import ToolUseError
from whale_envs.harness.helpers import ExecResult, ReplyView, TaskView
from whale_envs.harness.namespace import Namespace
from whale_envs.tools.board import Board
from whale_envs.tools.retrieval import Retriever

HERE = Path(__file__).parent
#: Most microseconds a step in process beyond the tool, under either harness that ships.
TARGET = 30.0
#: h0 of SearchQA, without end.
LONG = """
from whale_envs.harness import system, tag, tool, user

def run(task, tools):
    messages = [system("Answer factual questions."), user(f"Question: {task.question}")]
    while True:
        reply = yield messages
        if answer := tag(reply.text, "answer"):
            return answer
        found = tools.search(tag(reply.text, "search"), k=1)
        messages += [reply.message, tool("\\n".join(p.head(20) for p in found))]
"""
#: (ours, a peer's row, the figure that both have and that means the same): where `run.py` says how many times ours is.
COMPARED = (
    ("whale search-qa h0", "gem-llm search-qa", "beyond tool"),
    ("whale search-qa h0", "gem-llm search-qa", "whole beyond tool"),
    ("whale search-qa h0", "gem-llm search-qa, with history", "beyond tool"),
    ("whale search-qa h0", "gem-llm search-qa, with history", "whole beyond tool"),
    ("whale search-qa h0, vector", "gem-llm search-qa, vector", "whole beyond tool"),
    ("whale search-qa h0", "verifiers search-qa", "whole beyond tool"),
    ("whale search-qa, long", "gem-llm search-qa, long", f"turn {TURNS[-1]}"),
    ("whale math h0", "gem-llm math", "beyond tool"),
    ("whale math h0", "gem-llm math, with history", "whole beyond tool"),
    ("whale math h0, vector", "gem-llm math, vector", "whole beyond tool"),
    ("whale math h0", "verifiers math", "whole beyond tool"),
    ("whale chess h0", "textarena chess", "step"),
    ("whale chess h0", "textarena chess", "whole"),
)
Scripts = dict[str, list[str]]
Measured = dict[str, list[Figures]]

TOOLS = Tools()
for owner, name in ((Board, "board"), (Board, "move"), (Retriever, "search")):
    setattr(owner, name, TOOLS.timed(getattr(owner, name)))


def main(peers: Path | None = None, tasks: int = 64, rounds: int = 9, num_envs: int = 64) -> None:
    """Run the benchmark and write results.json beside this file.

    Args:
        peers: the Python of a virtual environment with the peers (see README.md); None leaves them out.
        tasks: episodes a round and row.
        rounds: how often every row is measured, after once to warm up.
        num_envs: how many episodes at a time in the vector envs.
    """
    domains = {name: offline(name) for name in whale_envs.DOMAINS}
    chosen = {name: domain.splits["test"][:tasks] for name, domain in domains.items()}
    scripts = {name: {t.id: script(name, t) for t in domain.splits["test"]} for name, domain in domains.items()}
    measured: Measured = {}
    with ExitStack() as stack:
        theirs = Peers(peers, workload(domains, chosen, scripts), num_envs, stack) if peers else None
        for number in range(rounds + 1):
            for name, domain in domains.items():
                rows = dict(ours(domain, chosen[name], scripts[name], num_envs)) | (
                    theirs.round(name) if theirs else {}
                )
                for row, figures in rows.items() if number else ():
                    measured.setdefault(row, []).append(figures)
    results = {
        "command": " ".join(["python", "benchmarks/env_overhead/run.py", *sys.argv[1:]]).replace(
            str(peers), "PEERS/bin/python"
        ),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"{os.getloadavg()[0]:.1f} processes running in the last minute",
        "versions": {p: version(p) for p in ("gymnasium", "msgspec", "chess", "bm25s")}
        | (theirs.versions if theirs else {}),
        "unit": "microseconds (reset: an episode; all others: a step), median over rounds [least, most]",
        "rows": {
            row: {name: spread([f[name] for f in figures]) for name in figures[0]} for row, figures in measured.items()
        },
        "ratios": ratios(measured),
        "target": targets(measured),
    }
    (HERE / "results.json").write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")
    show(results)


def ratios(measured: Measured) -> dict[str, str]:
    """How many times a peer's figure ours is, round by round."""
    told = {}
    for our_row, their_row, name in COMPARED:
        if their_row in measured:
            both = zip(measured[our_row], measured[their_row], strict=True)
            told[f"{our_row} / {their_row}: {name}"] = spread([o[name] / t[name] for o, t in both], 2)
    return told


def targets(measured: Measured) -> dict[str, str]:
    """Whether a step in process takes no longer beyond the tool than it may, and no longer than the fastest peer's."""
    told = {}
    for row in (f"whale {name} {kind}" for name in whale_envs.DOMAINS for kind in ("h0", "strong")):
        step = statistics.median(figures["beyond tool"] for figures in measured[row])
        told[row] = f"{step:.1f}, at most {TARGET:g}: {'met' if step <= TARGET else 'missed'}"
    for our_row, name in dict.fromkeys((ours, name) for ours, _, name in COMPARED):
        times = {
            their_row: statistics.median(
                o[name] / t[name] for o, t in zip(measured[ours], measured[their_row], strict=True)
            )
            for ours, their_row, figure in COMPARED
            if (ours, figure) == (our_row, name) and their_row in measured
        }
        if times:
            fastest = max(times, key=times.__getitem__)
            met = "met" if times[fastest] <= 1 else "missed"
            told[f"{our_row}: {name}"] = f"{times[fastest]:.2f} of {fastest}, the fastest: {met}"
    return told


def spread(values: list[float], digits: int = 1) -> str:
    """Median, least and most."""
    return f"{statistics.median(values):.{digits}f} [{min(values):.{digits}f}, {max(values):.{digits}f}]"


def show(results: dict[str, Any]) -> None:
    """Print the results for a person."""
    for row, figures in results["rows"].items():
        print(f"{row:36}" + "  ".join(f"{name} {value}" for name, value in figures.items()))
    for part in ("ratios", "target"):
        print(f"\n{part}")
        for name, value in results[part].items():
            print(f"{name:80}{value}")


def offline(name: str) -> Domain:
    """The domain with its bundled world; programs are not run, since starting one takes longer than all the rest."""
    return MathCode(run_code=TOOLS.timed(canned)) if name == "math" else load_domain(name)


def canned(code: str, kept: object) -> ExecResult:
    """What `print(...)` of a number prints."""
    return ExecResult(code[len("print(") : -1] + "\n", "", "ok")


def script(name: str, task: Task) -> list[str]:
    """What the policy replies, call after call: it knows the answer, and makes a mistake first at chess."""
    if name == "math":
        return [f"<python>print({task.gold})</python>", f"So the answer is \\boxed{{{task.gold}}}."]
    if name == "chess":
        return ["<move>a1a1</move>", *(f"<move>{uci}</move>" for uci in task.gold.line[::2])]
    words = task.shown["question"].removeprefix("What is the ").removesuffix("?").split(" of ")
    return [f"<search>{words[-1]}</search>", f"<search>{words[0]}</search>", f"<answer>{task.gold[0]}</answer>"]


def ours(domain: Domain, tasks: list[Task], scripts: Scripts, num_envs: int) -> Iterator[tuple[str, Figures]]:
    """One round of our rows of a domain."""
    name, id = domain.name, whale_envs.DOMAINS[domain.name].id
    for kind in ("h0", "strong"):
        harness = load_harness(kind, name)
        env = gymnasium.make(id, domain=domain, harness=harness, split="test")
        yield f"whale {name} {kind}", one_by_one(env, tasks, scripts, harness)
        env.close()
    harness = load_harness("h0", name)
    yield f"whale {name} h0, vector", side_by_side(HarnessVectorEnv(num_envs, domain, split="test"), scripts)
    make = functools.partial(HarnessEnv, domain, harness=harness, split="test")
    sync = SyncVectorEnv([make] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
    yield f"whale {name} h0, SyncVectorEnv", side_by_side(sync, scripts)
    env = HarnessEnv(domain, harness=Harness(harness.source, "h0", trusted=False), split="test")
    yield f"whale {name} h0, jailed", one_by_one(env, tasks, scripts)
    env.close()
    if name == "search-qa":
        yield f"whale {name}, long", long_episodes(domain, tasks[:8], scripts)


def one_by_one(
    env: gymnasium.Env[Any, Any], tasks: list[Task], scripts: Scripts, harness: Harness | None = None
) -> Figures:
    """Figures of episodes one after the other; with those of a harness's own code when it is given."""
    taken, records = [], []
    for task in tasks:
        episode, replies = Episode(TOOLS), iter(scripts[task.id])
        _, info = episode.time_reset(lambda task=task: env.reset(options={"task": task.id}))
        while "record" not in info:
            *_, info = episode.time_step(env.step, next(replies))
        taken.append(episode.figures())
        records.append((task, info["record"]))
    figures = medians(taken)
    if harness is not None:
        figures["harness alone"] = 1e6 * statistics.median(by_hand(harness, *played) for played in records)
    return figures


def by_hand(harness: Harness, task: Task, record: whale_envs.Episode) -> float:
    """Seconds a step that a harness's own code takes: its generator, fed the recorded replies and results."""
    made = iter(record.tool_calls)

    class Recorded:
        """Tools that give what they gave, and refuse what they refused."""

        def __getattr__(self, name: str) -> Any:
            return self.call

        def call(self, *args: Any, **kwargs: Any) -> Any:
            was = next(made)
            if was.error:
                raise ToolUseError(was.error)
            return was.result

    run = Namespace(lambda text: None).load(harness.code, record.seed)
    episode = run(TaskView(task.shown), Recorded())
    next(episode)
    start = clock()
    try:
        for call in record.calls:
            episode.send(ReplyView(call.reply.text))
    except StopIteration:
        pass
    return (clock() - start) / len(record.calls)


def side_by_side(envs: gymnasium.vector.VectorEnv[Any, Any, Any], scripts: Scripts) -> Figures:
    """Figures of a vector env, which deals the tasks."""
    _, infos = envs.reset(seed=0)

    def choose(turns: list[int]) -> list[str]:
        return [scripts[task][turn] for task, turn in zip(infos["task_id"], turns, strict=True)]

    def step(replies: list[str]) -> Any:
        nonlocal infos
        *_, terminations, truncations, infos = envs.step(replies)
        return terminations | truncations

    figures = blocks(TOOLS, envs.num_envs, choose, step)
    envs.close()
    return figures


def long_episodes(domain: Domain, tasks: list[Task], scripts: Scripts) -> Figures:
    """What a step takes at each of `TURNS` when an episode goes on and on."""
    env = HarnessEnv(domain, harness=Harness(LONG, "long", trusted=True), split="test")
    env.max_asks = TURNS[-1] + 1
    taken = []
    for task in tasks:
        episode, searches = Episode(TOOLS), scripts[task.id][:2]
        episode.time_reset(lambda task=task: env.reset(options={"task": task.id}))
        for turn in range(TURNS[-1]):
            episode.time_step(env.step, searches[turn % 2])
        taken.append(episode.by_turn())
    env.close()
    return medians(taken)


def workload(domains: dict[str, Domain], chosen: dict[str, list[Task]], scripts: dict[str, Scripts]) -> dict[str, Any]:
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


class Peers:
    """The peers' process: it plays a round of the domain that a line names."""

    def __init__(self, python: Path, work: dict[str, Any], num_envs: int, stack: ExitStack) -> None:
        file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "workload.json"
        file.write_text(json.dumps(work))
        command = [str(python), str(HERE / "peers.py"), str(file), str(num_envs)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        stack.enter_context(self._process)
        self.versions: dict[str, str] = self._line()

    def round(self, domain: str) -> dict[str, Figures]:
        """One round of the peers' rows of a domain."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{domain}\n")
        self._process.stdin.flush()
        rows: dict[str, Figures] = self._line()
        return rows

    def _line(self) -> Any:
        """The next line that is JSON: the peers print, too."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise RuntimeError(f"peers.py ended with status {self._process.wait()}")


if __name__ == "__main__":
    tyro.cli(main)
