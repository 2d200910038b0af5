"""Retrieval beside bm25s used directly, tantivy and rank_bm25: building, memory, speed, and what is found.

Each build and each measure of memory has a process of its own. Speed is measured in one process, round by round, each
system in turn, so that whatever else the machine does hits all alike; ratios are taken within a round.

    pip install tantivy
    OMP_NUM_THREADS=1 WHALE_REAL_DATA=DIR python benchmarks/retrieval/run.py --work /tmp/retrieval
"""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import generated
import tyro
from systems import Bm25s, Bm25sWithPassages, MappedBm25s, Ours, OursWithPassages, RankBm25, System, Tantivy

from whale_envs.data.corpus import read_corpus
from whale_envs.tools.retrieval import BM25Retriever
from whale_envs.tools.retrieval_tokens import tokens
from whale_envs.verifiers.exact_match import normalise

#: Who is built, and who is opened.
BUILT: tuple[type[System], ...] = (Ours, Bm25s, Tantivy)
OPENED: tuple[type[System], ...] = (Ours, Bm25s, MappedBm25s, Tantivy, OursWithPassages, Bm25sWithPassages)
K = 10
#: At least so much of the queries a second of bm25s used directly, in one thread; at most so many MB resident.
TARGET, TARGET_MB = 0.9, 1500
#: Files that hold the passages themselves.
TEXTS = ("passages.jsonl", "corpus.jsonl")


def main(work: Path, passages: int = 1_000_000, rounds: int = 7, queries: int = 500, slow_queries: int = 3) -> None:
    """Run the benchmark and write results.json beside this file.

    Args:
        work: a folder for the corpora and indexes, about 8 GB.
        passages: the size of the generated corpus.
        rounds: how often speed is measured.
        queries: queries in each round.
        slow_queries: queries that rank_bm25 is asked, once.
    """
    real = Path(os.environ["WHALE_REAL_DATA"], "qa")
    work.mkdir(parents=True, exist_ok=True)
    questions = [json.loads(line) for line in (real / "qa_dev_eval.jsonl").read_text().splitlines()]
    made = work / f"generated-{passages}.jsonl"
    asked = generated.write(made, passages, queries)
    corpora = {
        "wiki": (real / "corpus_wiki.jsonl.gz", [q["question"] for q in questions]),
        f"generated, {passages:,} passages": (made, asked),
    }
    results: dict[str, Any] = {
        "command": " ".join([environment(), "python", "benchmarks/retrieval/run.py", *sys.argv[1:]]),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": {p: version(p) for p in ("bm25s", "numba", "numpy", "rank-bm25", "tantivy")},
        "k": K,
    }
    for number, (name, (corpus, texts)) in enumerate(corpora.items()):
        folder = work / f"indexes-{number}"
        shutil.rmtree(folder, ignore_errors=True)
        found: dict[str, Any] = {"build": {}, "memory": {}}
        for system in BUILT:
            found["build"][system.name] = alone(build, system, corpus, folder / system.name)
            say(name, system.name, found["build"][system.name])
        for system in OPENED:
            found["memory"][system.name] = alone(memory, system, built(folder, system), texts)
            say(name, system.name, found["memory"][system.name])
        found["speed"] = alone(speed, folder, texts, queries, rounds)
        say(name, found["speed"])
        RankBm25.build(corpus, folder / "rank_bm25")
        found["rank_bm25"] = alone(reference, folder / "rank_bm25", texts[:slow_queries])
        say(name, found["rank_bm25"])
        found["target"] = targets(found)
        results[name] = found
    results["quality on wiki"] = quality(corpora["wiki"][0], work / "indexes-0", questions)
    Path(__file__).with_name("results.json").write_text(json.dumps(results, indent=2) + "\n")
    print(json.dumps(results, indent=2))


def environment() -> str:
    """The environment variables that decide the figures, as a shell takes them; where the data are is no part of it."""
    threads = f"OMP_NUM_THREADS={os.environ['OMP_NUM_THREADS']} " if "OMP_NUM_THREADS" in os.environ else ""
    return f"{threads}WHALE_REAL_DATA=DIR"


def targets(found: dict[str, Any]) -> dict[str, str]:
    """Whether ours is as fast and as small as it should be."""
    told = {}
    for way in ("one by one", "batch, 1 thread"):
        for peer in (Bm25s.name, Bm25sWithPassages.name):
            ratio = found["speed"][way][peer]["whale_over_it"]
            told[f"{way}, over {peer}"] = f"{ratio:.2f}, at least {TARGET}: {'met' if ratio >= TARGET else 'missed'}"
    resident = found["memory"][OursWithPassages.name]["VmRSS_mb"]
    told["resident"] = f"{resident:.0f} MB, at most {TARGET_MB}: {'met' if resident <= TARGET_MB else 'missed'}"
    return told


def say(*what: object) -> None:
    """Progress, on stderr."""
    print(*what, file=sys.stderr, flush=True)


def alone(job: Callable[..., Any], *args: Any) -> Any:
    """The result of `job(*args)` in a process of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(job, *args).result()


def built(folder: Path, system: type[System]) -> Path:
    """Where a system's index is."""
    return folder / (system.built_by or system.name)


def build(system: type[System], corpus: Path, folder: Path) -> dict[str, float]:
    """Build: passages a second of the clock and of CPU time, peak memory, size on disk."""
    wall, cpu = time.perf_counter(), time.process_time()
    system.build(corpus, folder)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    passages = sum(1 for _ in read_corpus(corpus))
    files = {p.relative_to(folder): p.stat().st_size for p in folder.rglob("*") if p.is_file()}
    return {
        "seconds": wall,
        "cpu_seconds": cpu,
        "passages_per_second": passages / wall,
        "passages_per_cpu_second": passages / cpu,
        "peak_mb": status("VmHWM"),
        "index_mb": sum(size for path, size in files.items() if path.name not in TEXTS) / 1e6,
        "passages_mb": sum(size for path, size in files.items() if path.name in TEXTS) / 1e6,
    }


def memory(system: type[System], folder: Path, texts: Sequence[str]) -> dict[str, float]:
    """Open and answer every query one by one: CPU seconds to open and to answer the first, memory after all."""
    start = time.process_time()
    opened = system(folder)
    ready = time.process_time()
    opened.ask(texts[:1], K)
    first = time.process_time()
    for text in texts:
        opened.ask([text], K)
    resident = {f"{field}_mb": status(field) for field in ("VmRSS", "RssAnon", "RssFile")}
    return {"open_cpu_seconds": ready - start, "first_answer_cpu_seconds": first - ready, **resident}


def status(field: str) -> float:
    """A field of this process's status, in MB."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[field].split()[0]) / 1024


def speed(folder: Path, texts: Sequence[str], queries: int, rounds: int) -> dict[str, Any]:
    """Queries a second, one by one and in batches, and ours over each other's.

    Seconds are of CPU time with one thread, which a busy machine leaves alone, and of the clock with two.
    """
    systems = [system(built(folder, system)) for system in OPENED]
    ways: dict[str, tuple[Callable[[], float], Callable[[System, Sequence[str]], Any]]] = {
        "one by one": (time.process_time, lambda s, t: [s.ask([text], K) for text in t]),
        "batch, 1 thread": (time.process_time, lambda s, t: s.ask(t, K)),
        "batch, 2 threads": (time.perf_counter, lambda s, t: s.ask(t, K, 2)),
    }
    rates: dict[str, dict[str, list[float]]] = {way: {s.name: [] for s in systems} for way in ways}
    for at in range(rounds + 1):
        chosen = [texts[(at * queries + i) % len(texts)] for i in range(queries)]
        for way, (clock, ask) in ways.items():
            for system in systems:
                if isinstance(system, Tantivy) and way != "one by one":
                    continue  # it has no batches
                start = clock()
                ask(system, chosen)
                if at:  # the first round compiles and reads the files
                    rates[way][system.name].append(len(chosen) / (clock() - start))
    peer = {s.name: OursWithPassages.name if "with passages" in s.name else Ours.name for s in systems}
    return {way: {name: summary(r, of[peer[name]]) for name, r in of.items() if r} for way, of in rates.items()}


def summary(rates: Sequence[float], ours: Sequence[float]) -> dict[str, float]:
    """The median rate, and ours over it: median, lowest and highest over the rounds."""
    ratios = sorted(a / b for a, b in zip(ours, rates, strict=True))
    return {
        "queries_per_second": statistics.median(rates),
        "whale_over_it": statistics.median(ratios),
        "lowest": ratios[0],
        "highest": ratios[-1],
    }


def reference(folder: Path, texts: Sequence[str]) -> dict[str, float]:
    """rank_bm25: CPU seconds to build, resident memory, queries a second."""
    start = time.process_time()
    opened = RankBm25(folder)
    ready = time.process_time()
    for text in texts:
        opened.ask([text], K)
    return {
        "build_cpu_seconds": ready - start,
        "queries_per_cpu_second": len(texts) / (time.process_time() - ready),
        "peak_mb": status("VmHWM"),
    }


def quality(corpus: Path, folder: Path, questions: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Recall of answers: how many questions have a gold answer, normalised, in one of the best 1, 3 and 10 passages."""
    texts = [f" {normalise(f'{p.title} {p.text}')} " for p in read_corpus(corpus)]
    golds = [[f" {g} " for a in q["answers"] if (g := normalise(a))] for q in questions]
    asked = [tokens(q["question"]) for q in questions]
    rows, scores = BM25Retriever.open(folder / Ours.name).rank(asked, K)
    direct_rows, direct_scores = Bm25s(folder / Bm25s.name).index.retrieve(asked, k=K, show_progress=False)

    def recall(ranking: Any, k: int) -> float:
        pairs = zip(ranking, golds, strict=True)
        hits = [any(g in texts[row] for row in best[:k] if row >= 0 for g in gold) for best, gold in pairs]
        return sum(hits) / len(hits)

    return {
        "questions": len(questions),
        "recall": {
            f"@{k}": {"whale": recall(rows.tolist(), k), "bm25s": recall(direct_rows.tolist(), k)} for k in (1, 3, 10)
        },
        "questions with the same scores to the last bit": float((scores == direct_scores).all(1).mean()),
        "questions with the same passages": float((rows == direct_rows).all(1).mean()),
    }


if __name__ == "__main__":
    tyro.cli(main)
