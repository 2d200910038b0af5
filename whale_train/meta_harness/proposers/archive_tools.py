"""What a proposer that is a model does with an archive: list, read, grep, compare, view an episode, try, submit.

Each tool is a struct: its fields are the tool's input (the JSON schema and the checks come from them), its docstring
is what the model is told, `answer` does it. A `ToolInputError` says to the model what to mend. Files are read below
the archive's folder alone, whatever a path says; everything shown is bounded.
"""

from __future__ import annotations

import difflib
import inspect
import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
import zstandard

from whale_envs import Domain, Harness
from whale_envs.harness.load import HarnessSourceError
from whale_train.meta_harness.archive import Archive, tree_hash
from whale_train.meta_harness.prompt_only import refused_edit
from whale_train.meta_harness.proposers.archive_views import (
    candidate_line,
    cut,
    frontier,
    outcome_line,
    result_of,
    transcript,
)
from whale_train.meta_harness.proposers.base import Proposal
from whale_train.meta_harness.proposers.code import Code
from whale_train.meta_harness.proposers.drafts import try_draft
from whale_train.meta_harness.records import Candidate, Outcome, Score

#: Most characters that one tool call shows.
MAX_SHOWN = 24_000
#: Most tasks that a draft is tried on at once.
MAX_TRIED = 5
#: Most matches that grep shows, and how long it may take in seconds.
MAX_MATCHES, GREP_SECONDS = 60, 10


class ToolInputError(Exception):
    """A tool was called with something that it cannot use."""


@dataclass
class Desk:
    """A proposer's place of work for one round: the archive, the candidates handed in so far, of `count`, and the
    domain, in which drafts are tried."""

    archive: Archive
    count: int
    domain: Domain
    submitted: list[Proposal] = field(default_factory=list)

    @property
    def missing(self) -> int:
        """How many candidates are still wanted."""
        return self.count - len(self.submitted)

    def use(self, name: str, input: object) -> str:
        """Use a tool. Raises `ToolInputError` for an unknown tool and for input that it cannot use."""
        if name not in TOOLS:
            raise ToolInputError(f"there is no tool {name!r}: the tools are {', '.join(TOOLS)}")
        try:
            json.dumps(input, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise ToolInputError(f"the input is no valid text: {error.reason}") from None
        try:
            tool = msgspec.convert(input, TOOLS[name])
        except msgspec.ValidationError as error:
            raise ToolInputError(f"{name} cannot be called like this: {error}") from None
        shown = tool.answer(self)
        if len(shown) > MAX_SHOWN:
            return f"{shown[:MAX_SHOWN]}\n[cut here: {len(shown) - MAX_SHOWN:,} more characters]"
        return shown

    def candidate(self, hash: str) -> Candidate:
        """An archived candidate by its hash."""
        if hash not in self.archive:
            raise ToolInputError(f"no candidate {hash!r}: list_candidates shows their hashes")
        return self.archive[hash]

    def score(self, candidate: Candidate) -> Score | None:
        """A candidate's score under the phase's weights, tasks and seed."""
        return candidate.scores.get(str(self.archive.phase.score_key)) if self.archive.phase else None

    def outcomes(self, hash: str) -> dict[str, Outcome]:
        """What came of each task in the current phase, by task."""
        if self.score(self.candidate(hash)) is None:
            raise ToolInputError(f"candidate {hash} has no score under the present weights")
        assert self.archive.phase is not None
        return self.archive.outcomes(hash, self.archive.phase.score_key)

    def path(self, name: str) -> Path:
        """A file or folder of the archive. Raises `ToolInputError` for what is not there or lies outside."""
        root = self.archive.folder.resolve()
        try:
            found = (root / name).resolve(strict=True)
        except (OSError, ValueError, RuntimeError):  # not there; a null byte; links in a circle
            raise ToolInputError(f"no file {name!r} in the archive: read a folder to see what is in it") from None
        if not found.is_relative_to(root) or not (found.is_file() or found.is_dir()):
            raise ToolInputError(f"{name!r} is no file of the archive: give a path below its folder")
        return found

    def files(self, folder: Path) -> list[Path]:
        """The files below a folder of the archive, in order, links and unfinished files left out."""
        paths = [folder] if folder.is_file() else sorted(folder.rglob("*"))
        kept = [p for p in paths if not p.is_symlink() and p.is_file() and not p.name.startswith(".")]
        return [p for p in kept if p.resolve().is_relative_to(self.archive.folder.resolve())]


class Tool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool's input."""

    def answer(self, desk: Desk) -> str:
        """Do it; the text that the model gets."""
        raise NotImplementedError


Hash = Annotated[str, msgspec.Meta(description="a candidate's hash")]
Page = Annotated[int, msgspec.Meta(ge=1)]


class ListCandidates(Tool, frozen=True):
    """List every candidate (score under the present weights and against its parents, or why it was refused; parents,
    axes, and beside that what its author expected), what each finished round did, and the tasks that others solve and
    the accepted harness does not."""

    def answer(self, desk: Desk) -> str:
        """See `Tool.answer`."""
        archive = desk.archive
        lines = [f"{len(archive.candidates)} candidates, best first; accepted: {archive.accepted}"]
        scored = archive.scored()
        others = [c for c in archive.candidates if c not in scored]
        lines += [candidate_line(desk, c) for c in [*scored, *reversed(others)]]
        lines += [
            f"round {r.round} of {r.phase}: accepted {r.accepted} at {r.accepted_mean:.3f}; tried "
            + (", ".join(f"{t.hash} ({'refused' if t.gate else f'{t.mean:.3f}'})" for t in r.tried) or "nothing")
            + (f"; {r.note}" if r.note else "")
            for r in archive.rounds
        ]
        return "\n".join([*lines, *frontier(desk)])


class Outcomes(Tool, frozen=True):
    """List what came of each task for one candidate: task id, score, number of model calls, the verdict's reason."""

    candidate: Hash

    def answer(self, desk: Desk) -> str:
        """See `Tool.answer`."""
        return "\n".join(outcome_line(o) for o in desk.outcomes(self.candidate).values())


class Episodes(Tool, frozen=True):
    """Show the transcript of one candidate on one task, whole: every message, tool call and result, the verdict."""

    candidate: Hash
    task: Annotated[str, msgspec.Meta(description="a task id, as the list of outcomes shows it")]

    def answer(self, desk: Desk) -> str:
        """See `Tool.answer`."""
        desk.candidate(self.candidate)
        key = desk.archive.phase.score_key if desk.archive.phase else None
        played = [e for e in desk.archive.episodes(self.candidate, key) if e.task_id == self.task]
        if not played:
            raise ToolInputError(f"{self.candidate} has not played task {self.task!r}: outcomes lists what it played")
        return "\n\n".join(transcript(e) for e in played)


class Compare(Tool, frozen=True):
    """Compare two candidates under the present weights: the difference of their code, and the tasks that one solves
    and the other does not, with both verdicts."""

    first: Hash
    second: Hash

    def answer(self, desk: Desk) -> str:
        """See `Tool.answer`."""
        ours, theirs = desk.outcomes(self.first), desk.outcomes(self.second)
        shared = [t for t in ours if t in theirs]
        wins = [t for t in shared if ours[t].score > theirs[t].score]
        losses = [t for t in shared if ours[t].score < theirs[t].score]
        solved = sum(ours[t].solved and theirs[t].solved for t in shared)
        lines = [
            f"{len(shared)} shared tasks: {len(wins)} only {self.first} wins, {len(losses)} only {self.second} wins, "
            f"both solve {solved}, neither {sum(not (ours[t].solved or theirs[t].solved) for t in shared)}"
        ]
        for title, tasks in ((f"only {self.first}", wins), (f"only {self.second}", losses)):
            lines += [f"{title}: {t} · {ours[t].reason} · {theirs[t].reason}" for t in tasks]
        before, after = (desk.archive.source(h).splitlines() for h in (self.first, self.second))
        return "\n".join([*lines, "", *difflib.unified_diff(before, after, self.first, self.second, lineterm="")])


class Read(Tool, frozen=True):
    """Read lines of a file of the archive (candidates/<hash>/harness.py, say), or list a folder ("." is the top)."""

    path: Annotated[str, msgspec.Meta(description="relative to the archive's folder")]
    first: Page = 1
    last: Page | None = None

    def answer(self, desk: Desk) -> str:
        """See `Tool.answer`."""
        found = desk.path(self.path)
        if found.is_dir():
            root = desk.archive.folder.resolve()
            listed = [f"{p.relative_to(root)}  {p.stat().st_size:,} bytes" for p in desk.files(found)]
            return "\n".join(listed) or "nothing is in it"
        unpacking = zstandard.open if found.suffix == ".zst" else open
        with unpacking(found, "rt", encoding="utf-8", errors="replace") as file:
            numbered = [(i, line.rstrip("\n")) for i, line in enumerate(file, 1)]
        wanted = numbered[self.first - 1 : self.last]
        if not wanted:
            return f"{self.path} has {len(numbered)} lines; none in that range"
        lines = [f"{i}\t{cut(line)}" for i, line in wanted]
        if found.name == "hypothesis.md" and found.parent.name in desk.archive:
            lines.append(f"[what came of it: {result_of(desk, desk.archive[found.parent.name])}]")
        return "\n".join(lines)


class Grep(Tool, frozen=True):
    """Find a regular expression (Python's) in the archive's files, line by line; each match with some text around."""

    pattern: Annotated[str, msgspec.Meta(min_length=1, max_length=500)]
    path: Annotated[str, msgspec.Meta(description="a file or folder to look in")] = "."

    def answer(self, desk: Desk) -> str:
        """See `Tool.answer`. The search is a process of its own, since a pattern can take for ever."""
        root = desk.archive.folder.resolve()
        files = [str(p.relative_to(root)) for p in desk.files(desk.path(self.path))]
        job = json.dumps({"pattern": self.pattern, "files": files, "limit": MAX_MATCHES})
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-c", _GREP], input=job, capture_output=True, text=True, cwd=root,
                timeout=GREP_SECONDS,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise ToolInputError(f"the pattern took more than {GREP_SECONDS} s: give a simpler one") from None
        if done.returncode == 2:
            raise ToolInputError(f"the pattern does not compile: {done.stderr.strip()}")
        if done.returncode:
            raise RuntimeError(f"grep failed: {done.stderr}")
        return done.stdout or f"no match in {len(files)} files"


_GREP = """
import json, re, sys, zstandard
job = json.load(sys.stdin)
try:
    pattern = re.compile(job["pattern"])
except (re.error, OverflowError, RecursionError) as error:
    sys.exit(print(error, file=sys.stderr) or 2)
sys.stdout.reconfigure(errors="replace")
found = 0
for name in job["files"]:
    unpacking = zstandard.open if name.endswith(".zst") else open
    for number, line in enumerate(unpacking(name, "rt", encoding="utf-8", errors="replace"), 1):
        for match in pattern.finditer(line):
            found += 1
            if found > job["limit"]:
                sys.exit(print(f"[only the first {job['limit']} matches are shown]"))
            print(f"{name}:{number}: {line[max(0, match.start() - 120):match.end() + 120].strip()[:600]}")
"""


class TryDraft(Tool, frozen=True):
    """Play a draft on tasks that a candidate has played, without a model: it gets the replies recorded there, one after
    the other, then empty ones. Shows each whole episode (but no verdict), and from which call on the draft asks
    something else, so that what the model would reply there is not known."""

    source: Annotated[str, msgspec.Meta(description="the complete harness file")]
    candidate: Hash
    tasks: Annotated[
        list[str],
        msgspec.Meta(min_length=1, max_length=MAX_TRIED, description="task ids, as the list of outcomes shows them"),
    ]

    def answer(self, desk: Desk) -> str:
        """See `Tool.answer`."""
        harness = _checked(desk, self.source)
        desk.candidate(self.candidate)
        key = desk.archive.phase.score_key if desk.archive.phase else None
        played = {e.task_id: e for e in desk.archive.episodes(self.candidate, key)}
        for task in self.tasks:
            if task not in played:
                raise ToolInputError(f"{self.candidate} has not played task {task!r}: outcomes lists what it played")
        return "\n\n".join(try_draft(desk.domain, harness, [played[task] for task in self.tasks]))


class Submit(Tool, frozen=True):
    """Hand in one candidate. It is checked for what its text tells; told of an error, mend it and submit again."""

    source: Annotated[str, msgspec.Meta(description="the complete harness file")]
    hypothesis: Annotated[
        str,
        msgspec.Meta(
            min_length=1,
            description="one mechanism, and what it should do to which episodes, so that the result can prove it wrong",
        ),
    ]
    parents: Annotated[list[Hash], msgspec.Meta(description="the candidates that it was made from")]
    axes: Annotated[list[str], msgspec.Meta(description='what was varied, in a few words each ("reminder")')]

    def answer(self, desk: Desk) -> str:
        """See `Tool.answer`."""
        if not desk.missing:
            raise ToolInputError(f"all {desk.count} candidates are in: this one is not taken")
        for parent in self.parents:
            desk.candidate(parent)
        _checked(desk, self.source)
        tree = tree_hash(self.source)
        twin = desk.archive.with_tree(tree)
        if twin and (twin.gate or desk.score(twin)):  # one without a score under the present weights may be tried again
            raise ToolInputError(f"this is the same program as {twin.hash}: hand in another idea")
        if any(tree == tree_hash(p.source) for p in desk.submitted):
            raise ToolInputError("this is the same program as one that you have just submitted: hand in another idea")
        desk.submitted.append(Proposal(self.source, self.hypothesis, tuple(self.parents), tuple(self.axes)))
        return f"taken: {len(desk.submitted)} of {desk.count}"


def _checked(desk: Desk, source: str) -> Harness:
    """A source as a harness, as far as its text tells."""
    try:
        harness = Harness(source, name="candidate", trusted=False)
    except HarnessSourceError as error:
        raise ToolInputError(str(error)) from None
    if names := Code(source).undefined():
        raise ToolInputError(f"the source uses names that nothing defines: {', '.join(sorted(names))}")
    if refused := refused_edit(desk.archive, source):
        raise ToolInputError(refused)
    return harness


TOOLS: dict[str, type[Tool]] = {
    "list_candidates": ListCandidates,
    "outcomes": Outcomes,
    "episode": Episodes,
    "compare": Compare,
    "read": Read,
    "grep": Grep,
    "try_draft": TryDraft,
    "submit": Submit,
}


def tool_schemas() -> list[dict[str, Any]]:
    """The tools as (name, description, JSON schema of the input), in a fixed order, so that a cache can hold them."""
    _, defined = msgspec.json.schema_components(TOOLS.values())
    made = []
    for name, tool in TOOLS.items():
        schema = {k: v for k, v in defined[tool.__name__].items() if k in ("type", "properties", "required")}
        description = " ".join((inspect.getdoc(tool) or "").split())
        made.append(
            {"name": name, "description": description, "input_schema": {**schema, "additionalProperties": False}}
        )
    return made
