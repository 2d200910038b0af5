"""`whale doctor`: what this machine can do, and what to do about what it cannot."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from whale_envs import DOMAINS, load_domain, sandbox
from whale_envs.errors import UserError
from whale_envs.processors import processors
from whale_train.run_folder import versions
from whale_train.tiny import MODELS

#: Free memory and disk that `whale run` with its defaults takes, in GB.
MEMORY_GB, DISK_GB = 3, 2
KEYS = {
    "ANTHROPIC_API_KEY": "the anthropic proposer and judge",
    "OPENAI_API_KEY": "policies, proposers and judges at OpenAI; a server of your own may want none",
}


@dataclass(frozen=True)
class Finding:
    """One fact about the machine. `advice` says what to do where something is lacking."""

    what: str
    state: Literal["ok", "lacks", "broken"]
    fact: str
    advice: str = ""


def doctor(out: Path) -> int:
    """Print the findings; returns 0 when `whale run` can work here, 1 when something that it needs is broken."""
    marks = {"ok": "[green]ok[/]", "lacks": "[yellow]–[/]", "broken": "[red]broken[/]"}
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    found = list(findings(out))
    for finding in found:
        advice = f"\n[dim]{escape(finding.advice)}[/]" if finding.advice else ""
        table.add_row(marks[finding.state], finding.what, escape(finding.fact) + advice)
    Console(highlight=False, soft_wrap=True).print(table)
    return 1 if any(f.state == "broken" for f in found) else 0


def findings(out: Path) -> Iterator[Finding]:
    """Everything that `whale doctor` looks at, in the order shown. `out` is where runs would go."""
    yield Finding("versions", "ok", ", ".join(f"{name} {version}" for name, version in versions().items()))
    yield _machine()
    yield _gpu()
    advice = "pip install 'whale-rl[vllm]', in a virtual environment of its own: it wants an earlier transformers"
    yield _extra("vllm", "--policy vllm:DIR, fast sampling on GPUs", advice)
    yield _extra("ray", "more than one machine", "pip install 'whale-rl[ray]'")
    yield _sandbox()
    for key, use in KEYS.items():
        there = bool(os.environ.get(key))
        yield Finding(key, "ok" if there else "lacks", f"{'set' if there else 'not set'}; for {use}")
    for domain in DOMAINS:
        yield _data(domain)
        yield _model(domain)
    yield _writable(out)


def _machine() -> Finding:
    cores = processors()
    free = _free_memory_gb()
    said = f"{cores} cores, {free:.1f} GB of memory free" if free is not None else f"{cores} cores"
    if free is not None and free < MEMORY_GB:
        return Finding(
            "machine", "lacks", said, f"whale run takes up to {MEMORY_GB} GB: close something, or expect swapping"
        )
    return Finding("machine", "ok", f"{said}, {platform.system()} {platform.release()}")


def _free_memory_gb() -> float | None:
    """Memory that a new process could have; None where the system does not say."""
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return None
    lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) / 2**20


def _gpu() -> Finding:
    import torch

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        return Finding("GPU", "ok", ", ".join(names))
    if shutil.which("nvidia-smi") and torch.version.cuda is None:
        advice = "remove .venv and run make setup again: it picks torch by whether there is a GPU"
        return Finding("GPU", "lacks", "there is one, but this torch is a CPU build", advice)
    return Finding("GPU", "lacks", "none; the bundled models need none, models of 1 B parameters and more want one")


def _extra(name: str, use: str, advice: str) -> Finding:
    if importlib.util.find_spec(name) is None:
        return Finding(name, "lacks", f"not installed; for {use}", advice)
    distribution = metadata.packages_distributions()[name][0]  # vLLM's for CPUs goes by another name
    return Finding(name, "ok", f"{distribution} {metadata.version(distribution)}; for {use}")


def _sandbox() -> Finding:
    tier = sandbox.tier()
    if tier.startswith(("none", "unsafe")):
        return Finding("sandbox", "broken", tier, "harnesses and code of a model cannot be isolated; see --unsafe")
    return Finding("sandbox", "ok", f"tier {tier}")


def _data(domain: str) -> Finding:
    try:
        splits = load_domain(domain).splits
    except (UserError, OSError) as error:
        return Finding(f"{domain} data", "broken", str(error), "reinstall the package: its data files are not whole")
    return Finding(
        f"{domain} data",
        "ok",
        f"offline: {len(splits.weight)} weight, {len(splits.harness)} harness, {len(splits.test)} test",
    )


def _model(domain: str) -> Finding:
    files = sorted((MODELS / domain).glob("*.safetensors"))
    if not files:
        advice = f"python -m whale_train.tiny.pretrain {domain}, or use --policy hf:DIR"
        return Finding(f"{domain} model", "lacks", "the bundled model is not there", advice)
    return Finding(f"{domain} model", "ok", f"bundled, {sum(f.stat().st_size for f in files) / 1e6:.1f} MB")


def _writable(out: Path) -> Finding:
    home = next(p for p in (out.absolute(), *out.absolute().parents) if p.exists())
    try:
        with tempfile.TemporaryFile(dir=home) as file:
            file.write(b"whale")
    except OSError as error:
        return Finding("run folder", "broken", f"cannot write to {home}: {error.strerror}", "give another --out")
    free = shutil.disk_usage(home).free / 1e9
    if free < DISK_GB:
        return Finding(
            "run folder", "lacks", f"{home}: {free:.1f} GB free", f"a run takes up to {DISK_GB} GB: free some"
        )
    return Finding("run folder", "ok", f"{home}: {free:.0f} GB free")
