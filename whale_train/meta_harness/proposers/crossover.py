"""Exchange between ancestors: what one of them changed, put into another."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator

from whale_train.meta_harness.archive import Archive
from whale_train.meta_harness.proposers.code import Code
from whale_train.meta_harness.proposers.shapes import Edit


def merge(base: str, ours: str, theirs: str) -> str | None:
    """What `theirs` changed of `base`, made to `ours`, by lines; None where both changed the same lines differently."""
    base_lines, our_lines, their_lines = (t.splitlines(keepends=True) for t in (base, ours, theirs))
    our_changes, their_changes = _changes(base_lines, our_lines), _changes(base_lines, their_lines)
    changes = list(our_changes)
    for change in their_changes:
        if change in our_changes:
            continue
        start, end, _ = change
        if any(s <= end and start <= e and (s < end or start < e or (s, e) == (start, end)) for s, e, _ in our_changes):
            return None
        changes.append(change)
    for start, end, lines in sorted(changes, key=lambda c: (c[0], c[1]), reverse=True):
        base_lines[start:end] = lines
    return "".join(base_lines)


def _changes(base: list[str], other: list[str]) -> list[tuple[int, int, list[str]]]:
    matcher = difflib.SequenceMatcher(None, base, other, autojunk=False)
    return [(a, b, other[c:d]) for kind, a, b, c, d in matcher.get_opcodes() if kind != "equal"]


def common_ancestor(archive: Archive, one: str, other: str) -> str | None:
    """The nearest candidate that both descend from (either may be it)."""
    mine = set(lineage(archive, one))
    return next((h for h in lineage(archive, other) if h in mine), None)


def lineage(archive: Archive, hash: str) -> list[str]:
    """A candidate and all that it descends from, nearest first."""
    found, waiting = [], [hash]
    while waiting:
        now = waiting.pop(0)
        if now not in found and now in archive:
            found.append(now)
            waiting += archive[now].parents
    return found


def exchanged(parent: Code, donor: Code) -> Iterator[Edit]:
    """The parent with one constant or function as the donor has it."""
    ours, theirs = parent.constants(), donor.constants()
    for name in ours.keys() & theirs.keys() - {"_"}:
        if donor.of(theirs[name]) != parent.of(ours[name]):
            value = donor.of(theirs[name])
            expects = f"{name} = {value} did well in the other ancestor and does so here"
            yield Edit("exchange", f"{name} = {value}", expects, parent.edited(parent.replace(ours[name], value)))
    functions = {s.name: s for s in parent.tree.body if isinstance(s, ast.FunctionDef)}
    for stmt in donor.tree.body:
        mine = functions.get(stmt.name) if isinstance(stmt, ast.FunctionDef) else None
        if isinstance(stmt, ast.FunctionDef) and mine and donor.of(stmt) != parent.of(mine):
            expects = f"the other ancestor's {stmt.name} works better, whatever else differs"
            yield Edit(
                "exchange", f"function {stmt.name}", expects, parent.edited(parent.replace(mine, donor.of(stmt)))
            )
