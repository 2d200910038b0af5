"""A harness's source with its syntax tree: finding places in it, and editing the text there.

Edits go into the text by the positions that the tree gives, so everything else (comments, layout, docstring) stays as
its author wrote it and a diff shows the edit alone.
"""

from __future__ import annotations

import ast
import builtins
from dataclasses import dataclass
from typing import TypeVar

N = TypeVar("N", bound=ast.AST)


class Code:
    """Source text, its tree, and the way from a node to the text. Raises `SyntaxError` for text that does not parse."""

    def __init__(self, text: str) -> None:
        self.text = text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\f", " ")
        self.tree = ast.parse(text)
        self.parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}
        self._lines = [line + "\n" for line in text.split("\n")]  # not splitlines: the tree counts line feeds alone
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def _offset(self, line: int, column: int) -> int:
        """The place in the text of a line and a column, which the tree counts in bytes of UTF-8."""
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Where a node begins and ends in the text."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._offset(node.lineno, node.col_offset), self._offset(node.end_lineno, node.end_col_offset)

    def of(self, node: ast.expr | ast.stmt) -> str:
        """A node's text."""
        start, end = self.span(node)
        return self.text[start:end]

    def indent(self, stmt: ast.stmt) -> str:
        """The white space before a statement."""
        line = self._lines[stmt.lineno - 1]
        return line[: len(line) - len(line.lstrip())]

    def replace(self, node: ast.expr | ast.stmt, text: str) -> Change:
        """Put `text` in a node's place; further lines of `text` get the indentation of a statement's first."""
        start, end = self.span(node)
        return Change(start, end, _indented(text, self.indent(node)) if isinstance(node, ast.stmt) else text)

    def before(self, stmt: ast.stmt, text: str) -> Change:
        """Put lines before a statement."""
        start, _ = self.span(stmt)
        return Change(start, start, _indented(text, self.indent(stmt)) + "\n" + self.indent(stmt))

    def after(self, stmt: ast.stmt, text: str) -> Change:
        """Put lines after a statement."""
        _, end = self.span(stmt)
        return Change(end, end, "\n" + self.indent(stmt) + _indented(text, self.indent(stmt)))

    def walk(self, *types: type[N]) -> list[N]:
        """The nodes of these types, in the order of the text."""
        found = [n for n in ast.walk(self.tree) if isinstance(n, types)]
        return sorted(found, key=lambda n: (getattr(n, "lineno", 0), getattr(n, "col_offset", 0)))

    def statement(self, node: ast.AST) -> ast.stmt:
        """The innermost statement that holds a node."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def within(self, node: ast.AST, holder: ast.AST) -> bool:
        """Whether `holder` holds `node`, at any depth."""
        while node in self.parents:
            node = self.parents[node]
            if node is holder:
                return True
        return False

    def names(self) -> set[str]:
        """Every name that the source uses."""
        names = {n.id for n in ast.walk(self.tree) if isinstance(n, ast.Name)}
        return names | {a.arg for a in ast.walk(self.tree) if isinstance(a, ast.arg)}

    def undefined(self) -> set[str]:
        """Names that the source reads and nothing in it defines. (One that another function defines passes.)"""
        defined = {n.id for n in self.walk(ast.Name) if not isinstance(n.ctx, ast.Load)}
        defined |= {a.arg for a in self.walk(ast.arg)} | {h.name for h in self.walk(ast.ExceptHandler) if h.name}
        defined |= {d.name for d in self.walk(ast.FunctionDef)} | {d.name for d in self.walk(ast.ClassDef)}
        imported = [a for i in self.walk(ast.Import) for a in i.names]
        imported += [a for i in self.walk(ast.ImportFrom) for a in i.names]
        defined |= {(a.asname or a.name).partition(".")[0] for a in imported}
        return self.names() - defined - set(dir(builtins))

    def fresh(self, name: str) -> str:
        """`name`, or `name` with a number when the source uses it already."""
        taken, number = self.names(), 2
        result = name
        while result in taken:
            result, number = f"{name}{number}", number + 1
        return result

    def constants(self) -> dict[str, ast.expr]:
        """The module's constants: upper-case names and the literal that each is assigned, once."""
        found: dict[str, ast.expr] = {}
        for stmt in self.tree.body:
            if isinstance(stmt, ast.Assign):
                for target in stmt.targets:
                    found.update(_pairs(target, stmt.value))
            elif isinstance(stmt, ast.AnnAssign) and stmt.value is not None:
                found.update(_pairs(stmt.target, stmt.value))
        return found

    def imports(self, *names: str) -> list[Change]:
        """What makes `names` of `whale_envs.harness` available: a longer import line, or nothing if they are there."""
        line = next(
            (s for s in self.tree.body if isinstance(s, ast.ImportFrom) and s.module == "whale_envs.harness"), None
        )
        have = {a.asname or a.name for a in line.names} if line else set()
        missing = [n for n in names if n not in have]
        if not missing:
            return []
        if line is None:
            return [self.top(f"from whale_envs.harness import {', '.join(sorted(missing))}")]
        kept = [f"{a.name} as {a.asname}" if a.asname else a.name for a in line.names]
        return [self.replace(line, f"from whale_envs.harness import {', '.join(sorted([*kept, *missing]))}")]

    def imports_module(self, module: str) -> list[Change]:
        """What makes a module available."""
        have = any(
            isinstance(s, ast.Import) and any(a.name == module and not a.asname for a in s.names)
            for s in self.tree.body
        )
        return [] if have else [self.top(f"import {module}")]

    def top(self, text: str) -> Change:
        """Put a line before the module's first statement that is neither its docstring nor a __future__ import."""
        body = self.tree.body[1:] if ast.get_docstring(self.tree) is not None else self.tree.body
        first = next(s for s in body if not (isinstance(s, ast.ImportFrom) and s.module == "__future__"))
        return self.before(first, text)

    def define(self, name: str, value: str) -> Change:
        """Put a constant's definition after the module's last constant, or else after its imports."""
        body = self.tree.body
        homes = [s for s in body if isinstance(s, ast.Assign | ast.AnnAssign)]
        homes = homes or [s for s in body if isinstance(s, ast.Import | ast.ImportFrom)]  # type: ignore[misc]
        return self.after(homes[-1], f"{name} = {value}") if homes else self.top(f"{name} = {value}")

    def edited(self, *changes: Change) -> str:
        """The text with all changes made. Raises `ValueError` when two of them overlap."""
        text, limit = self.text, len(self.text) + 1
        for change in sorted(changes, key=lambda c: (c.start, c.end), reverse=True):
            if change.end > limit:
                raise ValueError("two edits of one place")
            text, limit = text[: change.start] + change.text + text[change.end :], change.start
        return text


@dataclass(frozen=True)
class Change:
    """Characters `start` to `end` of a text become `text`."""

    start: int
    end: int
    text: str


def _indented(text: str, indent: str) -> str:
    return text.replace("\n", "\n" + indent)


def _pairs(target: ast.expr, value: ast.expr) -> dict[str, ast.expr]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        return {k: v for t, e in zip(target.elts, value.elts, strict=True) for k, v in _pairs(t, e).items()}
    return {target.id: value} if isinstance(target, ast.Name) and target.id.isupper() else {}
