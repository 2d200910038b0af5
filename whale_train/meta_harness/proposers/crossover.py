"""Exchange between ancestors: what one of them changed, put into another; and the docstring that tells it."""

from __future__ import annotations

import ast
import difflib
import re
import textwrap
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
    for name in sorted(ours.keys() & theirs.keys()):
        if donor.of(theirs[name]) != parent.of(ours[name]):
            value = donor.of(theirs[name])
            expects = f"{name} = {value} did well in the other ancestor and does so here"
            yield Edit("exchange", f"{name} = {value}", expects, parent.edited(parent.replace(ours[name], value)))
    functions = {s.name: s for s in parent.tree.body if isinstance(s, ast.FunctionDef)}
    for stmt in donor.tree.body:
        mine = functions.get(stmt.name) if isinstance(stmt, ast.FunctionDef) else None
        if not isinstance(stmt, ast.FunctionDef) or not mine or donor.of(stmt) == parent.of(mine):
            continue
        taken = parent.edited(parent.replace(mine, donor.of(stmt)))
        missing = [n for n in sorted(Code(taken).undefined()) if n in theirs]
        taken = Code(taken).edited(*(Code(taken).define(n, donor.of(theirs[n])) for n in missing))
        expects = f"the other ancestor's {stmt.name} works better, whatever else differs"
        yield Edit("exchange", f"function {stmt.name}", expects, taken)


_TRAIL = re.compile(r"\s*Changed by search: (.*?)\.?\s*\Z", re.DOTALL)


def trail(source: str) -> tuple[str, list[str]]:
    """A harness's docstring, and the changes that it tells of."""
    title = ast.get_docstring(ast.parse(source)) or "A harness."
    found = _TRAIL.search(title)
    return (title[: found.start()], " ".join(found[1].split()).split("; ")) if found else (title, [])


def titled(source: str, changes: list[str]) -> str:
    """The source with a docstring that tells of these changes too, or with none told when there are none."""
    code = Code(source)
    title, told = trail(source)
    if not changes:
        text = title
    else:
        steps = "; ".join(dict.fromkeys([*told, *changes]))
        text = (
            title
            + "\n\n"
            + textwrap.fill(f"Changed by search: {steps}.", 118, break_long_words=False, break_on_hyphens=False)
            + "\n"
        )
    raw = "r" if "\\" in text else ""
    literal = f'{raw}"""{text}"""' if '"""' not in text and not text.endswith(("\\", '"')) else repr(text)
    first = code.tree.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        return code.edited(code.replace(first.value, literal))
    return f"{literal}\n\n{code.text}"
