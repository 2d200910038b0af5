"""`--edits prompt-only`: the control that changes what a model is told and nothing else (FST in arXiv 2609.00196)."""

from __future__ import annotations

import ast
from typing import Any

from whale_train.meta_harness.archive import Archive, without_docstrings


def refused_edit(archive: Archive, source: str) -> str:
    """Why the phase's `edits` do not allow a source, which must parse; "" where they do.

    It is held against the accepted harness. What was accepted or scored in the phase has that one's tree, strings
    apart, so that it is held against its parents, too.
    """
    if archive.phase is None or archive.phase.edits == "all":
        return ""
    found = beyond_strings(archive.source(archive.accepted), source)
    return f"only the text of strings may change (--edits prompt-only): {found}" if found else ""


def beyond_strings(before: str, after: str) -> str:
    """Where `after` differs from `before` in more than the values of string constants, "" where it does not.

    The literal parts of an f-string are string constants, and may come and go; its format specs are not, nor are bytes.
    Docstrings, comments and layout are left out. Both must parse. Raises `SyntaxError` for one that does not.
    """
    waiting: list[tuple[Any, Any, int]] = [(_tree(before), _tree(after), 1)]
    while waiting:  # no recursion: a source may nest deeper than Python's stack
        one, other, line = waiting.pop()
        line = getattr(other, "lineno", line)
        if isinstance(one, ast.Constant) and isinstance(other, ast.Constant):
            strings = isinstance(one.value, str) and isinstance(other.value, str)
            if not strings and _atom(one.value) != _atom(other.value):
                return _where(after, line)
        elif isinstance(one, ast.AST) and type(one) is type(other):
            parts = [(_part(one, name), _part(other, name), line) for name in reversed(one._fields)]
            waiting += parts
        elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
            waiting += [(a, b, line) for a, b in reversed(list(zip(one, other, strict=True)))]
        elif isinstance(one, ast.AST | list) or _atom(one) != _atom(other):
            return _where(after, line)
    return ""


def _tree(source: str) -> ast.AST:
    return without_docstrings(ast.parse(source))


def _part(node: ast.AST, name: str) -> Any:
    """A node's field, as far as it is compared."""
    value = getattr(node, name, None)
    if isinstance(node, ast.JoinedStr) and name == "values":
        return [part for part in value if not isinstance(part, ast.Constant)]
    if isinstance(node, ast.FormattedValue) and name == "format_spec" and value is not None:
        return ast.dump(value)  # an atom: it is compared with its strings
    return value


def _atom(value: Any) -> tuple[type, str]:
    """What is compared of a value that is no node: 1, 1.0 and True are three, and nan is itself."""
    return type(value), repr(value)


def _where(source: str, line: int) -> str:
    text = source.replace("\r\n", "\n").replace("\r", "\n").split("\n")[line - 1].strip()
    return f"line {line} changes more, at `{text[:60]}`"
