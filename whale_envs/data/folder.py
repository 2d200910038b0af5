"""A prepared folder: the three task sets as JSONL, and a card that says where they come from.

    card.json       for programs (`Card`); README.md: the same for people
    weight.jsonl    one task a line: {"id", "shown", "gold", "source"}
    harness.jsonl
    test.jsonl

The folder appears whole, by one rename, and is not read when a file in it was changed since.
"""

from __future__ import annotations

import glob
import os
import shutil
from pathlib import Path

import msgspec

from whale_envs.data.kept import home, kept
from whale_envs.data.reader import TaskReader, reader_of
from whale_envs.data.splits import read_splits
from whale_envs.episode import write_atomic
from whale_envs.errors import UserError
from whale_envs.task import SPLITS, Splits, Task, TaskSet


class Source(msgspec.Struct, frozen=True):
    """Where rows come from: a file, or a set of the hub. `revision` is a commit of it, or the file's SHA-256."""

    name: str
    revision: str
    licence: str
    rows: int


class Part(msgspec.Struct, frozen=True):
    """A task set: how many tasks, and `TaskSet.hash`."""

    tasks: int
    hash: str


class Card(msgspec.Struct, frozen=True):
    """What a prepared folder holds. `rows` is the number of tasks and dropped rows together; `verifier` is the one that
    can use them, "" where all of the domain's can."""

    domain: str
    verifier: str
    seed: int
    recipe: str
    sources: list[Source]
    rows: int
    splits: dict[str, Part]
    dropped: dict[str, int]


def load_splits(domain: str, path: str | Path, verifier: str = "") -> Splits:
    """The task sets of a domain from a prepared folder, or from files (see `whale_envs.data.splits.read_splits`).

    They hold what `verifier`, or the domain's own, can use. Raises `UserError` for what cannot be used.
    """
    path, reader = home(path), reader_of(domain, verifier)
    return read_folder(reader, path) if (path / "card.json").exists() else read_splits(reader, path)


@kept
def kept_splits(path: Path, domain: str, verifier: str = "") -> Splits:
    """What `load_splits` gives; read once, for as long as the files stay as they are."""
    return load_splits(domain, path, verifier)


def read_folder(reader: TaskReader, folder: Path) -> Splits:
    """The task sets of a prepared folder.

    Raises `UserError` for another domain's or verifier's, and for one that was changed since.
    """
    card = read_card(folder)
    if card.domain != reader.domain:
        raise UserError(f"{folder} holds tasks of {card.domain}: expected some of {reader.domain}")
    if card.verifier not in reader.verifiers:
        raise UserError(
            f"{folder} was prepared for --verifier {card.verifier}: give it here too, or prepare another folder without"
        )
    sets = {split: TaskSet(_tasks(folder / f"{split}.jsonl", reader), f"{folder} ({split})") for split in SPLITS}
    for split, tasks in sets.items():
        if tasks.hash != card.splits[split].hash:
            raise UserError(
                f"{folder / split}.jsonl is not what `whale data prepare` wrote: remove the folder and prepare it again"
            )
    return Splits(**sets, dropped=card.dropped)


def read_card(folder: Path) -> Card:
    """A prepared folder's card. Raises `UserError` when it is malformed or not there."""
    try:
        return msgspec.json.decode((folder / "card.json").read_bytes(), type=Card)
    except OSError as error:
        raise UserError(f"cannot read {folder / 'card.json'}: {error.strerror}; expected a prepared folder") from None
    except msgspec.DecodeError as error:
        raise UserError(
            f"{folder / 'card.json'} is malformed ({error}): remove the folder and prepare it again"
        ) from None


def write_folder(folder: Path, splits: Splits, card: Card) -> None:
    """Write a prepared folder, whole or not at all.

    Raises `UserError` when something else is there, or when it cannot be written.
    """
    folder = folder.absolute()
    draft = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_drafts(folder)
        draft.mkdir()
        try:
            for split in SPLITS:
                lines = [msgspec.json.encode(task) + b"\n" for task in splits[split]]
                write_atomic(draft / f"{split}.jsonl", b"".join(lines))
            write_atomic(draft / "README.md", readme(card).encode())
            write_atomic(draft / "card.json", msgspec.json.format(msgspec.json.encode(card)) + b"\n")
            os.replace(draft, folder)  # an empty folder may stand in its place
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror}; give another --out") from None


def _remove_drafts(folder: Path) -> None:
    """Remove what processes that no longer run left of this folder."""
    for draft in folder.parent.glob(f".{glob.escape(folder.name)}.*.tmp"):
        pid = draft.name.rsplit(".", 2)[1]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(draft, ignore_errors=True)


def readme(card: Card) -> str:
    """The card as Markdown."""
    sources = [f"| {s.name} | {s.revision[:12]} | {s.licence} | {s.rows:,} |" for s in card.sources]
    sets = [f"| {split} | {part.tasks:,} | {part.hash} |" for split, part in card.splits.items()]
    dropped = [f"| {reason} | {n:,} |" for reason, n in sorted(card.dropped.items(), key=lambda item: -item[1])]
    return "\n".join(
        [
            f"# Tasks of {card.domain}",
            "",
            f"{card.recipe} Seed {card.seed}. The three sets share no content.",
            *([f"For the verifier {card.verifier}."] if card.verifier else []),
            "Made by `whale data prepare`, for `--dataset` of the `whale` commands and `gym.make(..., dataset=...)`.",
            "The licences are what the sources state of themselves.",
            "",
            *("| source | revision | licence | rows |", "|---|---|---|---|", *sources, ""),
            *("| set | tasks | hash |", "|---|---|---|", *sets, ""),
            f"Of {card.rows:,} rows {'these' if dropped else 'none'} were left out{':' if dropped else '.'}",
            *(("", "| reason | rows |", "|---|---|", *dropped) if dropped else ()),
            "",
        ]
    )


def _tasks(path: Path, reader: TaskReader) -> list[Task]:
    found, number = [], 0
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):  # noqa: B007  (for the message)
                task = msgspec.json.decode(line, type=Task)
                found.append(msgspec.structs.replace(task, gold=msgspec.convert(task.gold, reader.gold)))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; remove the folder and prepare it again") from None
    except msgspec.DecodeError as error:
        raise UserError(f"{path}:{number} is no task ({error}): remove the folder and prepare it again") from None
    return found
