"""Training speed and memory of `RSFTTrainer` beside plain `SFTTrainer` with padding, on the same rows.

Rows are those of real episodes (all of them, accepted or not, so that lengths are not those of a bundled model's
successes alone), and rows of one length. Both trainers make one epoch in minibatches of 64 rows, micro-batches of 8,
with a random Qwen3 of about 3 M parameters. Each measurement is a process of its own; systems take turns within a
round, and ratios are taken within a round. Speed is labelled tokens a second of processor time, since a shared
machine makes wall time mean little.

    OMP_NUM_THREADS=1 python benchmarks/rsft/run.py
"""

from __future__ import annotations

import json
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import tyro

SYSTEMS = {"sft": "plain SFTTrainer, padded", "rsft": "RSFTTrainer", "rsft-free": "RSFTTrainer, padding_free"}
DOMAINS = ("search-qa", "math", "chess")
MINIBATCH, VOCABULARY = 64, 2048


def main(rounds: int = 3, rows: int = 128, tasks: int = 16, micro_batches: tuple[int, ...] = (8,)) -> None:
    """Run the benchmark and write results.json beside this file."""
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        mixes = {"equal": equal_rows(rows)} | {domain: episode_rows(domain, tasks, rows) for domain in DOMAINS}
        results: dict[str, Any] = {}
        for name, made in mixes.items():
            path = Path(folder) / f"{name}.json"
            path.write_bytes(msgspec.json.encode(made))
            results[name] = {"rows": described(made)}
            for size in micro_batches:
                runs: dict[str, list[dict[str, float]]] = {system: [] for system in SYSTEMS}
                for number in range(rounds):
                    for system in sorted(SYSTEMS, reverse=bool(number % 2)):
                        runs[system].append(measured(system, size, path))
                beside = {SYSTEMS[s]: summary(runs[s], runs["sft"]) for s in SYSTEMS}
                results[name][f"micro-batch {size}"] = {"without_padding": bound(made, size), **beside}
            print(name, json.dumps(results[name], indent=2), flush=True)
    found = {
        "command": " ".join(["OMP_NUM_THREADS=1 python benchmarks/rsft/run.py", *sys.argv[1:]]),
        "machine": f"{platform.machine()}, {os.cpu_count()} processors, load {before:.1f} before",
        "versions": {name: version(name) for name in ("torch", "transformers", "trl", "accelerate")},
        "unit": "labelled tokens a second of processor time; MiB at most, above the process before training",
        "mixes": results,
    }
    Path(__file__).with_name("results.json").write_text(json.dumps(found, indent=2) + "\n")


def equal_rows(count: int) -> list[dict[str, list[int]]]:
    """Rows of 256 tokens, a quarter of them labelled."""
    ids = [[2 + (row * 31 + at * 17) % (VOCABULARY - 2) for at in range(256)] for row in range(count)]
    return [{"input_ids": row, "labels": [-100] * 192 + row[192:]} for row in ids]


def episode_rows(domain: str, tasks: int, count: int) -> list[dict[str, list[int]]]:
    """The rows of episodes that the bundled model plays under the harnesses that ship."""
    from whale_envs import load_domain, load_harness
    from whale_train.policies.load import load_policy
    from whale_train.rollout import rollout
    from whale_train.rsft.rows import rows

    loaded, policy = load_domain(domain), load_policy("tiny", domain)
    dealt = loaded.splits.weight.deal(0, 0)[:tasks]
    episodes = [
        episode
        for name in ("h0", "strong")
        for episode in rollout(policy, loaded, load_harness(name, domain), dealt, "weight", 0, 4)
    ]
    found = [one_stretch(row.input_ids, row.labels) for episode in episodes for row in rows(episode)]
    step = max(1, len(found) // count)
    return found[::step][:count]


def one_stretch(ids: list[int], labels: list[int]) -> dict[str, list[int]]:
    """The row with a label on all that follows its first one, so that it can be given as an episode of one call."""
    said = next(at for at, label in enumerate(labels) if label != -100)
    return {"input_ids": ids, "labels": [-100] * said + ids[said:]}


def described(rows: list[dict[str, list[int]]]) -> dict[str, float]:
    """What a mix is like; lengths in tokens."""
    lengths = sorted(len(row["input_ids"]) for row in rows)
    labelled = sum(label != -100 for row in rows for label in row["labels"])
    return {
        "number": len(rows),
        "shortest": lengths[0],
        "median": statistics.median(lengths),
        "longest": lengths[-1],
        "labelled_share": round(labelled / sum(lengths), 3),
    }


def bound(rows: list[dict[str, list[int]]], size: int) -> float:
    """How many times as many tokens plain SFT computes on as there are: what doing without padding could gain."""
    lengths = [len(row["input_ids"]) for row in rows]
    random.Random(0).shuffle(lengths)
    return round(sum(size * max(lengths[at : at + size]) for at in range(0, len(lengths), size)) / sum(lengths), 2)


def measured(system: str, size: int, path: Path) -> dict[str, float]:
    """One measurement, in a process of its own."""
    command = [sys.executable, __file__, "--measure", system, str(size), str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def summary(runs: list[dict[str, float]], plain: list[dict[str, float]]) -> dict[str, Any]:
    """Median, lowest and highest of a system's figures, and of their ratios to plain SFT's of the same round."""
    speeds = [run["tokens_per_second"] for run in runs]
    ratios = [run["tokens_per_second"] / beside["tokens_per_second"] for run, beside in zip(runs, plain, strict=True)]
    memory = [run["mib"] for run in runs]
    return {"tokens_per_second": spread(speeds, 0), "to_plain": spread(ratios, 2), "peak_mib": spread(memory, 0)}


def spread(values: list[float], digits: int) -> dict[str, float]:
    low, middle, high = min(values), statistics.median(values), max(values)
    return {"median": round(middle, digits), "low": round(low, digits), "high": round(high, digits)}


def measure(system: str, size: int, path: Path) -> None:
    """Train one epoch on the rows in `path` and print what it took."""
    import torch
    from datasets import Dataset
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from trl import SFTConfig, SFTTrainer

    from whale_envs import Episode, Reply, Verdict, load_domain
    from whale_envs.episode import Call
    from whale_train import RSFTConfig, RSFTTrainer
    from whale_train.policies.load import load_policy
    from whale_train.rsft.rows import Row

    rows = msgspec.json.decode(path.read_bytes(), type=list[Row])
    vocabulary = 1 + max(VOCABULARY, *(max(row.input_ids) for row in rows))
    torch.manual_seed(0)
    shape = {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 5, "num_attention_heads": 4}
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=vocabulary, **shape, num_key_value_heads=4, head_dim=48, max_position_embeddings=4096,
            pad_token_id=0, eos_token_id=1, bos_token_id=None,
        )
    )  # fmt: skip
    common: dict[str, Any] = {
        "output_dir": str(path.parent / "out"), "learning_rate": 1e-4, "lr_scheduler_type": "constant",
        "per_device_train_batch_size": size, "max_length": None, "activation_checkpointing": False,
        "bf16": False, "use_cpu": True, "dataloader_pin_memory": False, "save_strategy": "no", "logging_steps": 1,
        "disable_tqdm": True,
    }  # fmt: skip
    tokenizer = load_policy("tiny", "math").tokenizer

    class OnRows(RSFTTrainer):
        """Given its rows, each as an episode of one call."""

        def sample(self, step: int) -> list[Episode]:
            return [episode(at, row) for at, row in enumerate(rows)]

    def episode(at: int, row: Row) -> Episode:
        said = len(row) - row.trained
        call = Call([], Reply("", "stop", [], row.input_ids[:said], row.input_ids[said:]))
        return Episode(str(at), "d", "h", at, calls=[call], verdict=Verdict(1.0, ""))

    trainer: SFTTrainer
    if system == "sft":
        data = Dataset.from_dict({"input_ids": [r.input_ids for r in rows], "labels": [r.labels for r in rows]})
        args = SFTConfig(**common, num_train_epochs=1, gradient_accumulation_steps=MINIBATCH // size)
        trainer = SFTTrainer(model, args, train_dataset=data, processing_class=tokenizer)
    else:
        settings = RSFTConfig(
            **common, max_steps=1, minibatch_size=MINIBATCH, kl_sequences=0, padding_free=system == "rsft-free"
        )
        trainer = OnRows(model, load_domain("math"), "h0", settings, tokenizer)
    tokens = sum(row.trained for row in rows)
    start, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    trainer.train()
    took = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start
    print(json.dumps({"tokens_per_second": tokens / took, "mib": peak / 1024}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        measure(sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
    else:
        tyro.cli(main)
