"""The command line's arguments: what each command takes, and the one line of a mistake in it.

Nothing heavy is imported before they are understood.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import tyro

from whale_envs.errors import UserError, unknown
from whale_train.audit_command import AuditConfig, audit_harness
from whale_train.config import DiagnoseConfig, EvalConfig, RunConfig, SearchConfig, TrainConfig
from whale_train.options import check_seed
from whale_train.plan import PlanConfig
from whale_train.recipes import as_arguments, read_recipe
from whale_train.retrieval_commands import IndexConfig, ServeRetrievalConfig, index, serve_retrieval


@dataclass(frozen=True)
class ReportConfig:
    """Write report.html and report.png from a run folder; from several, comparison.html and comparison.png, with those
    pooled that differ only in their seeds."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN [RUN ...]")]
    """Folders that `whale run`, train or search made; several have to be tested on the same tasks."""
    out: Path | None = None
    """Where to write; by default into the run folder, and for several into the current one."""

    def __post_init__(self) -> None:
        if not self.runs:
            raise UserError("report: expected RUN, the folder of a run, or several to compare")


@dataclass(frozen=True)
class MatrixConfig:
    """Test every checkpoint of a run that has ended under every harness that it accepted, and say how much of its gain
    the weights, the harness, and both together make up. Writes matrix.json and matrix.png."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A folder that `whale run`, train or search made."""
    repeats: int | None = None
    """Episodes for each test task; by default as many as the run had, whose tests are then not played again."""
    limit: int | None = None
    """Use the first so many test tasks only; by default those of the run."""
    arm: str | None = None
    """Which of its arms; by default the first, which the run is about."""


@dataclass(frozen=True)
class ArchiveConfig:
    """Show the harnesses that a search has tried: who was made from whom, scores, hypotheses, why some were refused."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run folder, or an archive in it (arms/ARM/archive)."""


@dataclass(frozen=True)
class DiffConfig:
    """Compare two harnesses of an archive: the change of the code, and the tasks that one solves and the other not."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run folder, or an archive in it (arms/ARM/archive)."""
    a: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="A")]
    """A harness: its hash, or the beginning of it."""
    b: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="B")]
    """The other one."""


@dataclass(frozen=True)
class EpisodeConfig:
    """Print an episode as a person reads it: what the model was shown and said, the answer, the verdict."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run folder, or an archive in it (arms/ARM/archive)."""
    id: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ID")]
    """HARNESS/TASK as `whale diff` lists them, or TASK alone for every harness that played it."""


@dataclass(frozen=True)
class DoctorConfig:
    """Say what this machine can do, and what to do about what it cannot."""

    out: Path = Path("runs")
    """The folder that runs would go to."""


@dataclass(frozen=True)
class DataConfig:
    """Make a folder for --dataset of the other commands, from the hub or from files: `whale data prepare DOMAIN`."""

    action: Annotated[Literal["prepare"], tyro.conf.Positional, tyro.conf.arg(metavar="prepare")]
    """What to do with data."""
    domain: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DOMAIN")]
    """search-qa, math or chess."""
    source: str
    """hub (the paper's sets), hub:DIR (copies of them in DIR/OWNER/NAME), or a file of your own (CSV, JSONL, JSON or
    parquet, .gz or .zst), or a folder with train.csv, test.jsonl and the like."""
    out: Path
    """The folder to write, for --dataset; that of search-qa goes with a corpus: --dataset OUT,corpus=CORPUS."""
    seed: int = 0
    """Decides which rows are drawn."""
    revision: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """REPO=REVISION of a set of the hub, in place of the pinned commit; may be given again."""
    verifier: str | None = None
    """Who will score: math-verify keeps problems whose answers are no integers. Left out, the domain's own."""
    corpus: bool = False
    """Download the 2018 Wikipedia corpus (5.1 GB) for search-qa into the folder too."""

    def __post_init__(self) -> None:
        check_seed(self.seed)


Command = (
    Annotated[RunConfig, tyro.conf.subcommand("run")]
    | Annotated[PlanConfig, tyro.conf.subcommand("plan")]
    | Annotated[TrainConfig, tyro.conf.subcommand("train")]
    | Annotated[SearchConfig, tyro.conf.subcommand("search")]
    | Annotated[DiagnoseConfig, tyro.conf.subcommand("diagnose")]
    | Annotated[EvalConfig, tyro.conf.subcommand("eval")]
    | Annotated[AuditConfig, tyro.conf.subcommand("audit")]
    | Annotated[ReportConfig, tyro.conf.subcommand("report")]
    | Annotated[MatrixConfig, tyro.conf.subcommand("matrix")]
    | Annotated[ArchiveConfig, tyro.conf.subcommand("archive")]
    | Annotated[DiffConfig, tyro.conf.subcommand("diff")]
    | Annotated[EpisodeConfig, tyro.conf.subcommand("episode")]
    | Annotated[DataConfig, tyro.conf.subcommand("data")]
    | Annotated[DoctorConfig, tyro.conf.subcommand("doctor")]
    | Annotated[IndexConfig, tyro.conf.subcommand("index")]
    | Annotated[ServeRetrievalConfig, tyro.conf.subcommand("serve-retrieval")]
)


def parse(argv: Sequence[str]) -> Command:
    """The command that the arguments ask for; where it names a recipe, what is not among them comes from there."""
    command: Command = _parsed(Command, argv, "whale")
    if not isinstance(command, RunConfig) or command.recipe is None:
        return command
    recipe, kind = read_recipe(command.recipe), type(command)
    assumed = {f.name for f in fields(PlanConfig)} - {f.name for f in fields(RunConfig)}
    for option in recipe.plan:
        if option.replace("-", "_") not in assumed:
            raise unknown(f"option of [plan] in {recipe.path}", option, (name.replace("_", "-") for name in assumed))
    options = {**recipe.run, **recipe.plan} if kind is PlanConfig else dict(recipe.run)
    if any(word.split("=")[0] == "--epochs" for word in argv):
        options.pop("steps", None)  # they would go before what is typed
    try:
        base = _parsed(kind, as_arguments(recipe, options, kind), "whale")
    except UserError as error:
        raise UserError(f"recipe {recipe.path}: {error}") from None
    found: Command = _parsed(kind, argv[1:], f"whale {argv[0]}", default=base)
    return found


def _parsed(kind: Any, argv: Sequence[str], prog: str, **default: RunConfig) -> Any:
    """What the arguments make of a class, or of a union of commands. tyro's boxed complaints become one line."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(
                kind,
                args=argv,
                prog=prog,
                description="Train a language-model agent's weights and its harness in turn.",
                config=(tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes),
                **default,
            )
    except SystemExit as end:
        if end.code in (None, 0):
            raise
        known = {kind.__metadata__[0].name for kind in get_args(Command)}
        of = f"whale {argv[0]}" if prog == "whale" and argv and argv[0] in known else prog
        raise UserError(_one_line(said.getvalue(), f"{of} --help")) from None


def execute(command: Command) -> int:
    """Run a command; returns the exit code."""
    if isinstance(command, DoctorConfig):
        from whale_train.doctor import doctor

        return doctor(command.out)
    if isinstance(command, PlanConfig):
        from whale_train.plan_text import told

        print(told(command))
        return 0
    if isinstance(command, ReportConfig):
        from whale_train.report import write_comparison, write_report

        if len(command.runs) == 1:
            print(write_report(command.runs[0], command.out))
        else:
            print(write_comparison(command.runs, command.out or Path()))
        return 0
    if isinstance(command, MatrixConfig):
        from whale_train.matrix import matrix, show

        show(command.run, matrix(command.run, command.repeats, command.limit, command.arm))
        return 0
    if isinstance(command, ArchiveConfig | DiffConfig | EpisodeConfig):
        from whale_train.archive_commands import compare, show_archive, show_episode

        if isinstance(command, ArchiveConfig):
            return show_archive(command.run)
        if isinstance(command, DiffConfig):
            return compare(command.run, command.a, command.b)
        return show_episode(command.run, command.id)
    if isinstance(command, AuditConfig):
        return audit_harness(command)
    if isinstance(command, IndexConfig):
        return index(command)
    if isinstance(command, ServeRetrievalConfig):
        return serve_retrieval(command)
    if isinstance(command, DataConfig):
        from whale_train.data import prepare_data

        given = command.source, command.out, command.seed, command.revision, command.verifier, command.corpus
        return prepare_data(command.domain, *given)
    from whale_train import commands

    if isinstance(command, EvalConfig):
        return commands.evaluation(command)
    if isinstance(command, DiagnoseConfig):
        return commands.diagnosis(command)
    return commands.experiment(command)


def _one_line(boxed: str, more: str) -> str:
    """The gist of tyro's message: its first section, what it thinks was meant, and the command that says more."""
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip("│╭╰╮╯ ") for line in boxed.splitlines()]
    sections = " ".join("|" if line and set(line) in ({"─"}, {"-"}) else line for line in lines[1:]).split("|")
    # where the terminal takes no box characters, a rule stands below the title too
    gist = next((g for section in sections if (g := re.sub(r"\s+", " ", section).strip())), "")
    meant = re.search(r"Perhaps you meant: (--\S+)", re.sub(r"\s+", " ", boxed.replace("│", " ")))
    hint = f"; did you mean {meant[1]}?" if meant else ""
    return f"{gist or 'these arguments are not understood'}{hint} ({more} lists what there is)"
