"""`whale audit`: does a harness communicate only, or does it solve?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import tyro

from whale_envs.episode import read_json
from whale_envs.harness.load import load_harness
from whale_train.options import Job

if TYPE_CHECKING:
    from whale_train.meta_harness.audit import Audit


@dataclass(frozen=True)
class AuditConfig(Job):
    """Audit a harness: its source, whether the model wrote what it scores with, what it scores with policies that know
    nothing, and on tasks whose answers nobody can know. Exit code 0 when nothing is found, 1 otherwise."""

    kind: ClassVar[str] = "audit"

    harness: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="HARNESS")] = tyro.MISSING
    """h0, strong, or a path to a .py file. It runs jailed."""
    tasks: int = 128
    """Tasks of the harness split that it plays with the policy."""
    out: Path | None = None
    """The run folder; by default runs/audit-<domain>-<hash of the harness>-<seed>."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._positive("tasks")

    @property
    def splits(self) -> tuple[str, ...]:
        """See `Job.splits`."""
        return ("harness",)

    @property
    def folder(self) -> Path:
        """Where the run goes: a folder for each state of a file that is being edited."""
        return self.out or Path("runs") / f"{self.kind}-{self.domain}-{self.start().hash}-{self.seed}"


def audit_harness(config: AuditConfig) -> int:
    """Audit, keep the result, print it as a table; returns the exit code."""
    import msgspec

    from whale_train.commands import begun
    from whale_train.console import ConsoleProgress

    # whether the harness works is for the audit to say: what is tried is the policy, under one that does
    with begun(config, load_harness("h0", config.domain)) as (folder, policy):
        from whale_train.meta_harness.audit import Audit, audit

        domain = config.load_domain()
        tasks = domain.splits.harness
        if folder.finished:
            found = read_json(folder.path / "result.json", Audit)
        else:
            with ConsoleProgress(config.kind, min(config.tasks, len(tasks))) as progress:
                found = audit(policy, domain, config.start(), tasks, config.tasks, config.seed, progress)
                progress.finish()
            folder.write_result(passed=found.passed, **msgspec.structs.asdict(found))
    print_audit(config.harness, found)
    print(folder.path)
    return 0 if found.passed else 1


def print_audit(name: str, found: Audit) -> None:
    """The layers of an audit, one a row, with what each has found; then the figures of the null model."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for checked in found.layers:
        verdict = "[red]caught[/]" if checked.findings else "[green]ok[/]"
        said = [escape(f.reason + (f" ({f.where})" if f.where else "")) for f in checked.findings]
        table.add_row(verdict, checked.layer, "\n".join([f"[dim]{escape(checked.looked_at)}[/]", *said]))
    for compared in found.nulls:
        figures = f"{compared.score:.3f}, an honest harness {compared.reference:.3f}, p = {compared.p:.2g}"
        table.add_row("", f"  {compared.kind}", f"[dim]{figures}[/]")
    for tried in found.contained:
        table.add_row("[yellow]contained[/]", "", escape(tried))
    console = Console(highlight=False, soft_wrap=True)
    console.print(table)
    console.print(f"{escape(name)}: {'passed' if found.passed else f'caught, {len(found.findings)} findings'}")
