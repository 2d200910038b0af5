"""What it costs to run a harness jailed: the same episodes in-process, forked (what `Jail` does), and shared.

"shared" is the alternative that was not taken: one confined process for all episodes of a harness, each in a
namespace of its own. It is here at its cheapest, without what it would need to survive a hang or to be audited, and
speaks as `Jail` does: only the messages that are new travel.

An episode is a start and eight replies. A turn adds a reply of 130 characters and a tool's message of 400, as in
SearchQA; the last ask has 17 messages. The three take turns, so that whatever else the machine does hits them alike.

    OMP_NUM_THREADS=1 python benchmarks/jail/run.py
"""

from __future__ import annotations

import json
import os
import platform
import socket
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tyro

from whale_envs import Harness
from whale_envs.harness.helpers import Message, ReplyView, TaskView
from whale_envs.harness.jail import Jail, JailedSession
from whale_envs.harness.namespace import Run
from whale_envs.harness.session import InProcessSession, Session, Toolbox
from whale_envs.harness.wire import Channel, ask_from, fields_of, pack, unpack
from whale_envs.sandbox import layers, tier

SOURCE = """
from whale_envs.harness import Ask, system, tag, tool, user

SYSTEM = "Answer factual questions. Search when you need to."

def run(task, tools):
    messages = [system(SYSTEM), user(f"Question: {task.question}")]
    while True:
        reply = yield messages
        if answer := tag(reply.text, "answer"):
            return answer
        messages += [reply.message, tool("found " * 66)]
"""
REPLY = ReplyView("let me think " * 10)
TURNS = 8
#: Seconds between a start and the first reply: what the model takes, in which workers are forked ahead.
PAUSE = 0.02
MODES = ("trusted", "forked", "shared")
#: What a jailed episode may cost beyond one in-process, in microseconds: the issue's targets.
TARGETS = {"start": 1000, "resume": 150}
Make = Callable[[str, int], Session]


class Shared:
    """One confined process for all episodes."""

    def __init__(self, harness: Harness) -> None:
        self.socket, theirs = socket.socketpair()
        self.channel = Channel(self.socket.fileno())
        confinement = layers.Confinement()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                confinement.apply({theirs.fileno()}, 512, 3600)
                self.serve(Channel(theirs.fileno()), harness)
            finally:
                os._exit(1)
        theirs.close()

    def serve(self, channel: Channel, harness: Harness) -> None:
        """In the child: resume whichever episode is named."""
        runs: dict[int, Run] = {}
        before: dict[int, list[Message]] = {}
        while True:
            number, start, reply = channel.receive()
            if start is not None:
                runs[number], before[number] = Run(harness.code, lambda *call: None, lambda text: None), []
                runs[number].begin(TaskView(unpack(start["shown"])), start["seed"])
            kind, value = runs[number].resume(ReplyView(*reply) if reply else None)
            if kind == "ask":
                ask, value = value, fields_of(value, before[number])
                before[number] = ask.messages
            else:
                del runs[number], before[number]
            channel.send([kind, value])


class SharedSession(Session):
    """An episode in the shared process."""

    def __init__(self, shared: Shared, shown: dict[str, Any], toolbox: Toolbox, seed: int) -> None:
        super().__init__(toolbox)
        self.shared, self.number = shared, seed
        self.start: dict[str, Any] | None = {"shown": pack(shown, "a task"), "seed": seed}
        self.messages: list[Message] = []
        self.chars = 0

    def _run(self, reply: ReplyView | None) -> tuple[str, Any]:
        sent = [reply.text, reply.finish_reason] if reply else None
        self.shared.channel.send([self.number, self.start, sent])
        self.start = None
        kind, value = self.shared.channel.receive()
        if kind == "ask":
            value, self.chars = ask_from(value, self.messages, self.chars)
            self.messages = [dict(message) for message in value.messages]
        return kind, value

    def close(self) -> None:
        """Nothing to end."""


def one_by_one(make: Make, episodes: int) -> dict[str, dict[str, list[float]]]:
    """Microseconds per start, per resume and per end, in a list for each mode."""
    taken: dict[str, dict[str, list[float]]] = {m: {"start": [], "resume": [], "end": []} for m in MODES}
    for number in range(episodes):
        for mode in MODES:
            session = make(mode, number)
            timed(taken[mode]["start"], lambda session=session: session.resume(None))
            time.sleep(PAUSE)
            for _ in range(TURNS):
                timed(taken[mode]["resume"], lambda session=session: session.resume(REPLY))
            timed(taken[mode]["end"], session.close)
            time.sleep(PAUSE)
    return taken


def at_once(make: Make, count: int, rounds: int) -> tuple[dict[str, dict[str, list[float]]], dict[str, float]]:
    """The same with `count` episodes running side by side, and what a forked one takes of memory in MiB."""
    taken: dict[str, dict[str, list[float]]] = {m: {"start": [], "resume": [], "end": []} for m in MODES}
    memory: dict[str, float] = {}
    for number in range(rounds):
        for mode in MODES:
            sessions = [make(mode, number * count + i) for i in range(count)]
            each(taken[mode]["start"], sessions, lambda session: session.resume(None))
            time.sleep(PAUSE)
            for _ in range(TURNS):
                each(taken[mode]["resume"], sessions, lambda session: session.resume(REPLY))
            if mode == "forked":
                memory = memory_of(sessions)
            each(taken[mode]["end"], sessions, lambda session: session.close())
            time.sleep(10 * PAUSE)
    return taken, memory


def timed(into: list[float], work: Callable[[], Any]) -> None:
    """Append the microseconds that `work` takes."""
    start = time.perf_counter()
    work()
    into.append(1e6 * (time.perf_counter() - start))


def each(into: list[float], sessions: list[Session], work: Callable[[Session], Any]) -> None:
    """Append the microseconds that `work` takes for each session, on average over all."""
    start = time.perf_counter()
    for session in sessions:
        work(session)
    into.append(1e6 * (time.perf_counter() - start) / len(sessions))


def memory_of(sessions: list[Session]) -> dict[str, float]:
    """MiB of a worker, on average: its own pages, and what it shares of its zygote's counted in part (PSS)."""
    found: dict[str, list[int]] = {"Private_Dirty": [], "Pss": []}
    for session in sessions:
        assert isinstance(session, JailedSession)
        for line in Path(f"/proc/{session.pid}/smaps_rollup").read_text().splitlines()[1:]:
            name, _, rest = line.partition(":")
            if name in found:
                found[name].append(int(rest.split()[0]))
    return {name: round(statistics.mean(kib) / 1024, 2) for name, kib in found.items()}


def summary(taken: dict[str, dict[str, list[float]]]) -> dict[str, Any]:
    """Median, 5th and 95th percentile per mode, and how much more than trusted in the median."""
    result: dict[str, Any] = {}
    for step in ("start", "resume", "end"):
        for mode in MODES:
            values = sorted(taken[mode][step])
            spread = [round(values[int(q * (len(values) - 1))], 1) for q in (0.05, 0.95)]
            result.setdefault(step, {})[mode] = {"median": round(statistics.median(values), 1), "p5_p95": spread}
        base = statistics.median(taken["trusted"][step])
        for mode in MODES[1:]:
            result[step][f"{mode} - trusted"] = round(statistics.median(taken[mode][step]) - base, 1)
        if step in TARGETS:
            more = result[step]["forked - trusted"]
            result[step]["target"] = {"forked - trusted": TARGETS[step], "kept": more <= TARGETS[step]}
    return result


def main(episodes: int = 200, rounds: int = 5) -> None:
    """Run the benchmark and write results.json beside this file."""
    jailed, trusted = Harness(SOURCE, "benchmark"), Harness(SOURCE, "benchmark", trusted=True)
    shared = Shared(trusted)
    begun = time.perf_counter()
    jail = Jail(jailed)

    def make(mode: str, seed: int) -> Session:
        shown, toolbox = {"question": "Who wrote the book that the film was made after?"}, Toolbox({})
        if mode == "trusted":
            return InProcessSession(trusted, shown, toolbox, seed)
        if mode == "forked":
            return JailedSession(jail, shown, toolbox, seed)
        return SharedSession(shared, shown, toolbox, seed)

    for mode in MODES:
        make(mode, -1).resume(None)
    first = time.perf_counter() - begun  # the zygotes' start in it
    begun = time.perf_counter()
    another = Jail(Harness(f"{SOURCE}\n# another candidate", "another"))
    JailedSession(another, {"question": "Who?"}, Toolbox({}), 0).resume(None)
    following = time.perf_counter() - begun
    another.close()
    results: dict[str, Any] = {
        "command": " ".join(["python", "benchmarks/jail/run.py", *sys.argv[1:]]),
        "machine": f"{platform.machine()}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} before"
        + ", real-time priority" * (os.sched_getscheduler(0) == os.SCHED_FIFO),
        "versions": {"python": platform.python_version(), "kernel": platform.release(), "msgspec": version("msgspec")},
        "tier": tier(),
        "unit": "microseconds",
        "first_episode_of_the_first_jail": round(1e6 * first),
        "first_episode_of_another_jail": round(1e6 * following),
        "one_by_one": summary(one_by_one(make, episodes)),
    }
    for count in (64, 256):
        taken, memory = at_once(make, count, rounds)
        results[f"{count}_at_once"] = summary(taken) | {"mib_per_worker": memory}
    jail.close()
    os.kill(shared.pid, 9)
    os.waitpid(shared.pid, 0)
    Path(__file__).with_name("results.json").write_text(json.dumps(results, indent=2) + "\n")
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    tyro.cli(main)
