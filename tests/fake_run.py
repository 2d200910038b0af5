"""A run folder made with a scripted policy of given skill: what a report is tried on without training anything."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import msgspec

from whale_envs import Harness, load_domain
from whale_envs.episode import write_atomic
from whale_train.config import RunConfig
from whale_train.evaluate import evaluate
from whale_train.ledger import Ledger, Spent, tokens
from whale_train.meta_harness.archive import Archive
from whale_train.meta_harness.records import Phase, Round, Score, ScoreKey
from whale_train.policies.base import Request
from whale_train.policies.scripted import ScriptedPolicy
from whale_train.run_folder import RunFolder

#: (phase, rollouts, chance to answer right, how many changes the harness has) for the points of each arm
CURVES = {
    "whale": [("start", 0, 0.2, 0), ("weights", 600, 0.35, 0), ("harness", 900, 0.5, 1), ("weights", 1500, 0.62, 1),
              ("harness", 1800, 0.66, 2)],
    "weights-only": [("start", 0, 0.2, 0), ("weights", 900, 0.36, 0), ("weights", 1800, 0.4, 0)],
    "harness-only": [("start", 0, 0.2, 0), ("harness", 900, 0.3, 1), ("harness", 1800, 0.33, 1)],
}  # fmt: skip


#: A harness of this file's own, so that the shipped ones may change.
START = """from whale_envs.harness import tag, tool, user

TURNS = 3
PASSAGES = 1
WORDS = 24


def run(task, tools):
    messages = [user(f"Question: {task.question}\\nAnswer in <answer>...</answer>.")]
    for _ in range(TURNS):
        reply = yield messages
        if answer := tag(reply.text, "answer"):
            return answer
        found = tools.search(tag(reply.text, "search") or "", k=PASSAGES)
        messages += [reply.message, tool("\\n".join(p.head(WORDS) for p in found))]
    return None
"""


def scripted(skill: float, name: str) -> ScriptedPolicy:
    """A policy that searches once, then answers right with chance `skill`."""
    domain = load_domain("search-qa")
    golds = {t.shown["question"]: t.gold[0] for split in ("test", "harness") for t in domain.splits[split]}

    def reply(request: Request) -> str:
        question = next(m["content"] for m in request.ask.messages if m["role"] == "user")
        question = question.removeprefix("Question: ").partition("\n")[0]
        if not any(m["role"] == "tool" for m in request.ask.messages):
            return f"<search>{question}</search>"
        luck = random.Random(request.seed).random() + random.Random(question).uniform(-0.3, 0.3)
        return f"<answer>{golds[question] if luck < skill else 'Nobody & <b>'}</answer>"

    return ScriptedPolicy(reply, name)


def make_run(
    folder: Path, tasks: int = 10, arms: tuple[str, ...] = tuple(CURVES), seed: int = 0, **options: Any
) -> Path:
    """A finished run folder with these arms, each point tested on `tasks` tasks, 8 repeats each."""
    domain = load_domain("search-qa")
    second = START.replace("PASSAGES = 1", "PASSAGES = 2").replace("WORDS = 24", "WORDS = 48")
    sources = [START, second, second.replace("TURNS = 3", "TURNS = 4")]
    harnesses = [Harness(source, f"changed {i} times", trusted=True) for i, source in enumerate(sources)]
    config = RunConfig(out=folder, seed=seed, **options)
    with RunFolder(config, "full") as run:
        for arm in arms:
            home, rows = folder / "arms" / arm, []
            ledger = Ledger(home / "ledger.jsonl")
            for i, (phase, rollouts, skill, changes) in enumerate(CURVES[arm]):
                harness, policy = harnesses[changes], scripted(skill, f"{arm} {i}")
                result, episodes = evaluate(
                    policy, domain, harness, "test", limit=tasks, seed=seed, folder=folder / "test" / f"{arm}-{i}"
                )
                kind = {"weights": "sampling", "harness": "search"}.get(phase, "test")
                prompt, sampled = tokens(episodes)
                ledger.add(Spent(f"{i} {phase}", kind, rollouts, prompt, sampled, seconds=12.5 * i))
                point = {"rollouts": rollouts, "phase": f"{i} {phase}", "kind": phase, "cycle": (i + 1) // 2}
                hashes = {"harness": harness.hash, "weights": policy.weights_hash}
                rows.append(point | hashes | result.summary() | {"test": f"{arm}-{i}"})
            ledger.add(Spent("proposals", "proposer", seconds=3.0, dollars=1.25))
            ledger.add(Spent("judged", "search", dollars=0.75, judge=0.5))
            write_atomic(home / "curve.jsonl", b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
            write_atomic(home / "state.json", msgspec.json.encode(rows))
            write_atomic(home / "harness.py", harness.source.encode())
            if arm != "weights-only":
                _search(Archive(home / "archive", "search-qa"), harnesses[: changes + 1])
        run.write_result(rollouts=1800, seconds=301.0)
    return folder


def _search(archive: Archive, accepted: list[Harness]) -> None:
    """File a search that came to these harnesses, one in each of its phases."""
    key, start = ScoreKey("w0", "data", 0), accepted[0]
    archive.add(start.source, "Where the search starts from.", (), (), "start")
    archive.begin(Phase("cycle 1", key), start.hash)
    archive.record(start.hash, key, Score(0.31, 0.02, 100, 2.0, "u0"), [])
    hypotheses = ["Two passages and <twice> the words hold the answer more often.", "Another turn finds what is left."]
    for i, (before, after) in enumerate(itertools.pairwise(accepted), 1):
        archive.add(after.source, hypotheses[i - 1], (before.hash,), (f"change {i}",), f"r{i}")
        archive.record(after.hash, key, Score(0.41 + i / 100, 0.02, 100, 2.0, f"u{i}"), [])
        last = {"optimism": 0.0171, "confirmed": 0.387}
        archive.finish_round(Round(f"cycle {i}", 1, [], after.hash, 0.41 + i / 100, **last))
