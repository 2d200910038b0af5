"""`whale data prepare`: task sets from the hub or from files, as a folder that every `--dataset` takes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from whale_envs.data.folder import Card, Part, Source, read_card, read_folder, write_folder
from whale_envs.data.hub import NOT_STATED, SETS, Hub, files_hash
from whale_envs.data.kept import home
from whale_envs.data.reader import Progress, TaskReader, Watch, reader_of
from whale_envs.data.recipes import described, draw_from_hub
from whale_envs.data.splits import HELD_OUT, deal, read_all, split_files
from whale_envs.domains import DOMAINS
from whale_envs.errors import UserError, unknown
from whale_envs.harness.wire import clean
from whale_envs.task import SPLITS, Splits
from whale_envs.verifiers.choose import MATH

FILES_RECIPE = (
    f"Rows of files; where no file holds them, the test set and D_harness are each a quarter of D_weight's rows, "
    f"at most {HELD_OUT['test']} and {HELD_OUT['harness']}."
)


def unwatched(what: str, rows: int | None) -> Progress:
    """A `Watch` that tells nobody."""
    return lambda rows: None


def prepare(
    domain: str,
    source: str,
    out: Path,
    seed: int = 0,
    revisions: Mapping[str, str] | None = None,
    watch: Watch = unwatched,
    verifier: str | None = None,
) -> Card:
    """Read, check, split and write a domain's tasks; returns the folder's card.

    Args:
        domain: "search-qa", "math" or "chess".
        source: "hub" for the paper's sets, "hub:DIR" for copies of them in DIR/OWNER/NAME, else a file or a folder
            (see `whale_envs.data.splits.read_splits`).
        out: the folder to write. If what is asked for is there already, it is checked and left as it is.
        seed: decides which rows are drawn.
        revisions: of the hub's sets by repository, in place of the pinned ones.
        watch: told what is read.
        verifier: who will score: "math-verify" keeps the problems of math whose answers are no integers; None is the
            domain's own.

    Raises `UserError` for a source or verifier that cannot be used, and for a folder that holds something else.
    """
    if domain not in DOMAINS:
        raise unknown("domain", domain, DOMAINS)
    if verifier is not None and domain != "math":
        raise UserError(f"--verifier {verifier}: every verifier of {domain} takes the same tasks; leave it out")
    if verifier is not None and verifier not in MATH:
        raise unknown("verifier of math", verifier, MATH)
    reader = reader_of(domain, verifier or "")
    hub = hub_of(source, revisions or {})
    if (out / "card.json").exists():
        return _kept(reader, source, out, seed, hub)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is there already and no prepared folder: give a new or empty folder to --out")
    if hub is not None:
        splits, sources = draw_from_hub(reader, hub, seed, watch)
        recipe = described(domain, splits)
    else:
        splits, sources = _from_files(reader, home(source), seed, watch)
        recipe = FILES_RECIPE
    card = _card(reader, seed, recipe, sources, splits)
    write_folder(out, splits, card)
    return card


def hub_of(source: str, revisions: Mapping[str, str]) -> Hub | None:
    """The hub that a source names, None for one that names files. Raises `UserError` for revisions of files."""
    kind, _, mirror = source.partition(":")
    if kind == "hub" and not (mirror and revisions):
        return Hub(home(mirror) if mirror else None, revisions)
    if revisions:
        raise UserError(f"only --source hub has revisions to choose from, not {source}: leave them out")
    return None


def _from_files(reader: TaskReader, path: Path, seed: int, watch: Watch) -> tuple[Splits, list[Source]]:
    if (path / "card.json").exists():
        raise UserError(f"{path} is prepared already: give it to --dataset as it is")
    files = split_files(path)
    pools = {split: reader.pool(read_all(reader, part), watch(_names(part), None)) for split, part in files.items()}
    splits = deal(pools, seed, str(path))
    sources = [Source(_names(part), files_hash(part), NOT_STATED, pools[split].rows) for split, part in files.items()]
    return splits, sources


def _kept(reader: TaskReader, source: str, out: Path, seed: int, hub: Hub | None) -> Card:
    """The card of a folder that holds what is asked for."""
    card = read_card(out)
    if hub is not None:
        asked = [(f"{s.repo}/{s.files}", hub.revision(s)) for s in SETS[reader.domain]]
    else:
        asked = [(_names(part), files_hash(part)) for part in split_files(home(source)).values()]
    there = [(s.name, s.revision) for s in card.sources]
    # a branch's or tag's commit is on the hub: the card has what it was
    same = len(asked) == len(there) and all(
        name == kept and (revision == found or not re.fullmatch("[0-9a-f]{40,64}", revision))
        for (name, revision), (kept, found) in zip(asked, there, strict=True)
    )
    if (card.domain, card.verifier, card.seed, same) != (reader.domain, reader.verifiers[0], seed, True):
        raise UserError(
            f"{out} holds tasks of another domain, verifier, seed or source: give another --out, or remove the folder"
        )
    read_folder(reader, out)
    return card


def _card(reader: TaskReader, seed: int, recipe: str, sources: list[Source], splits: Splits) -> Card:
    parts = {split: Part(len(splits[split]), splits[split].hash) for split in SPLITS}
    rows = sum(source.rows for source in sources)
    kept, dropped = sum(part.tasks for part in parts.values()), sum(splits.dropped.values())
    assert kept + dropped == rows, f"{kept} kept and {dropped} dropped are not the {rows} rows"
    return Card(reader.domain, reader.verifiers[0], seed, recipe, sources, rows, parts, splits.dropped)


def _names(files: list[Path]) -> str:
    return ", ".join(clean(file.name) for file in files)
