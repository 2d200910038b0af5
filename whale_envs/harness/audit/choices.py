"""Where a harness's source decides by what the task says, or by what a move is worth.

Data is followed from what `run` is given as its task, from a board's `fen` and from its list of legal moves through
assignments and calls of the file's own functions, whatever their order; a model's reply and a tool's result are new
data.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence

from whale_envs.harness.audit.finding import Finding
from whale_envs.harness.audit.rows import KINDS, Rows
from whale_envs.harness.audit.syntax import fold, found
from whale_envs.harness.helpers import words
from whale_envs.harness.load import run_of

#: String and `re` functions that ask whether a text is or holds another.
_ASKS = frozenset(("startswith", "endswith", "find", "index", "count", "match", "search", "fullmatch", "findall"))
#: Letters of pieces; four of them with numbers are values to rank moves by.
_PIECES = frozenset("pnbrqkPNBRQK")
#: What holds the text of a passage, of a program's output, of a reply.
_TEXTS = ("text", "title", "stdout", "stderr", "head", "snippets", "sentences")
#: Passes over a source that follow its data: each carries it on through all assignments in one direction, so that
#: honest programs take three or four. What needs more was written to keep its reader busy.
PASSES = 32
#: An integer that a text is compared with and that is larger than this is a fingerprint, not a length.
FINGERPRINT = 1000


def choices(tree: ast.Module, rows: Rows) -> Iterator[Finding]:
    """The findings of a harness's syntax tree."""
    run = run_of(tree)
    task, tools = (a.arg for a in run.args.args)
    if run.decorator_list:
        yield found(run, "decorates run: what runs is not what is written")
    shown, legal = Flow(tree, {task}, {"fen", "board"}, tools), Flow(tree, set(), {"legal"}, tools)
    if shown.lost or legal.lost:
        yield found(run, "hands data on through more names than can be followed")
    yield from _ByTheTask(tree, rows, shown).findings()
    seen = Flow(tree, {task}, {"fen", "board", "legal", *_TEXTS}, tools)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from _ranked(node, legal)
            yield from _cut(node, seen)
        elif isinstance(node, ast.Dict):
            yield from _valued(node)


#: Where data goes from one name to another.
_PASSING = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr, ast.For, ast.comprehension, ast.Call)


class Flow:
    """Which expressions carry data from some names and attributes, by the names that they were assigned to.

    `tools` is what `run` calls its tools; what a tool gives is new data. `lost` says that there was more to follow
    after `PASSES`.
    """

    def __init__(self, tree: ast.Module, names: set[str], attributes: set[str], tools: str) -> None:
        self.names, self.attributes, self.tools = set(names), attributes, {tools}
        self._functions = {n.name: n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
        nodes = [n for n in ast.walk(tree) if isinstance(n, _PASSING)]
        self.lost = True
        for _ in range(PASSES):
            size = len(self.names) + len(self.tools)
            for node in nodes:
                self._follow(node)
            self.lost = size != len(self.names) + len(self.tools)
            if not self.lost:
                break
            nodes.reverse()

    def carries(self, node: ast.AST | None) -> bool:
        """Whether an expression holds such data."""
        if node is None or isinstance(node, ast.Yield | ast.YieldFrom | ast.Lambda):
            return False
        if isinstance(node, ast.Name):
            return node.id in self.names
        if isinstance(node, ast.Attribute):
            return node.attr in self.attributes or self.carries(node.value)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and self._is_tools(node.func.value):
            return False
        return any(self.carries(child) for child in ast.iter_child_nodes(node))

    def _follow(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign):
            self._assign(node.targets, node.value)
        elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
            self._assign([node.target], node.value)
        elif isinstance(node, ast.For | ast.comprehension):
            self._assign([node.target], node.iter)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in self._functions:
            parameters = [a.arg for a in self._functions[node.func.id].args.args]
            given = [*zip(parameters, node.args, strict=False)]
            given += [(k.arg, k.value) for k in node.keywords if k.arg in parameters]
            self.names |= {p for p, value in given if self.carries(value)}
            self.tools |= {p for p, value in given if self._is_tools(value)}

    def _assign(self, targets: list[ast.expr], value: ast.expr | None) -> None:
        names = {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
        if self.carries(value):
            self.names |= names
        elif value is not None and self._is_tools(value):
            self.tools |= names

    def _is_tools(self, node: ast.expr) -> bool:
        """Whether an expression is the tools, and by no other assignment the data that is followed."""
        return isinstance(node, ast.Name) and node.id in self.tools and node.id not in self.names


class _ByTheTask:
    """Finds decisions by what the task says: comparisons with literals, tables, hashes."""

    def __init__(self, tree: ast.Module, rows: Rows, shown: Flow) -> None:
        self._tree, self._rows, self._shown = tree, rows, shown
        stores = Counter(n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
        self._once = {  # names that are assigned once in the file, wherever
            t.id: n.value
            for n in ast.walk(tree)
            if isinstance(n, ast.Assign)
            for t in n.targets
            if isinstance(t, ast.Name) and stores[t.id] == 1
        }
        self._constants = {
            t.id: s.value for s in tree.body if isinstance(s, ast.Assign) for t in s.targets if isinstance(t, ast.Name)
        }

    def findings(self) -> Iterator[Finding]:
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Compare):
                exact = any(isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.NotIn) for op in node.ops)
                yield from self._compared(node, [node.left, *node.comparators], exact)
            elif isinstance(node, ast.Match):
                cases = [n for case in node.cases for n in ast.walk(case.pattern) if isinstance(n, ast.Constant)]
                yield from self._compared(node, [node.subject, *cases], True)
            elif isinstance(node, ast.Subscript):
                yield from self._looked_up(node, node.value, node.slice)
            elif isinstance(node, ast.Call):
                yield from self._called(node)

    def _called(self, node: ast.Call) -> Iterator[Finding]:
        arguments = [*node.args, *(k.value for k in node.keywords)]
        if isinstance(node.func, ast.Name) and node.func.id == "hash" and any(map(self._shown.carries, arguments)):
            yield found(node, "hashes the task: a way to tell one from another")
        elif isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "pop") and node.args:
            yield from self._looked_up(node, node.func.value, node.args[0])
        elif isinstance(node.func, ast.Attribute) and node.func.attr in _ASKS:
            yield from self._compared(node, [node.func.value, *arguments], False)

    def _compared(self, node: ast.AST, sides: Sequence[ast.expr], exact: bool) -> Iterator[Finding]:
        """Findings where some sides carry a text of the task and others are literals or constants that hold them."""
        literals = [side for side in sides if not self._shown.carries(side)]
        if len(literals) == len(sides):
            return
        for side in literals:
            for part in ast.walk(self._constant(side)):
                text = fold(part)
                if text is not None and self._rows.particular(text):
                    yield found(node, f"branches on {text!r}, which {self._rows.holding(text)} tasks hold")
                elif exact and isinstance(part, ast.Constant) and type(part.value) is int and part.value >= FINGERPRINT:
                    yield found(node, f"compares the task with the number {part.value}")

    def _looked_up(self, node: ast.AST, table: ast.expr, key: ast.expr) -> Iterator[Finding]:
        """A table of literals that is indexed with a text of the task, unless its keys are kinds of tasks."""
        table = self._constant(table)
        if not self._shown.carries(key):
            return
        if isinstance(table, ast.Dict):
            keys = {k.value for k in table.keys if isinstance(k, ast.Constant)}
            if not keys <= self._rows.kinds:
                yield found(node, "looks the task up in a table")
        elif self._length(table) > KINDS:
            yield found(node, "looks the task up in a sequence")

    def _length(self, table: ast.expr) -> int:
        """How many literals a sequence holds: its items, or the words of a text that it is made from."""
        if isinstance(table, ast.Name):
            table = self._once.get(table.id, table)
        items = table.elts if isinstance(table, ast.List | ast.Tuple) else []
        parts = [self._once.get(n.id, n) if isinstance(n, ast.Name) else n for n in ast.walk(table)]
        taken = [len(words(text)) for text in map(fold, parts) if text]
        return max(sum(isinstance(item, ast.Constant) for item in items), *taken, 0)

    def _constant(self, node: ast.expr) -> ast.expr:
        return self._constants.get(node.id, node) if isinstance(node, ast.Name) else node


def _ranked(node: ast.Call, legal: Flow) -> Iterator[Finding]:
    """An order among the legal moves that is not that of their notation."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name not in ("sorted", "sort", "min", "max", "nlargest", "nsmallest"):
        return
    moves = [*node.args, node.func.value] if isinstance(node.func, ast.Attribute) else node.args
    if not any(map(legal.carries, moves)):
        return
    key = next((k.value for k in node.keywords if k.arg == "key"), None)
    by_part = isinstance(key, ast.Lambda) and _is_part(key)
    elements = [n.elt for a in moves for n in ast.walk(a) if isinstance(n, ast.GeneratorExp | ast.ListComp)]
    scored = any(not isinstance(part, ast.Name) for e in elements if isinstance(e, ast.Tuple) for part in e.elts)
    if (key is not None and not by_part) or scored:
        yield found(node, f"ranks the legal moves ({name})")


def _is_part(key: ast.Lambda) -> bool:
    """Whether a sort key is the element itself or one of its parts, as it stands."""
    body = key.body.value if isinstance(key.body, ast.Subscript | ast.Attribute) else key.body
    return isinstance(body, ast.Name) and body.id in [a.arg for a in key.args.args]


def _cut(node: ast.Call, seen: Flow) -> Iterator[Finding]:
    """An ask that ends the model's reply at a place that the harness has worked out: where the answer stands, when the
    model was to copy a list."""
    if getattr(node.func, "id", "") != "Ask":
        return
    given = dict(zip(("messages", "tools", "max_tokens", "stop"), node.args, strict=False))
    given |= {k.arg: k.value for k in node.keywords if k.arg}
    for name in ("max_tokens", "stop"):
        if name in given and _worked_out(given[name], seen):
            yield found(node, f"cuts the reply ({name}) by what the task, a tool or the model said")


def _worked_out(node: ast.expr, seen: Flow) -> bool:
    """Whether an expression is made from what was seen, not merely chosen by it among what is written out."""
    if isinstance(node, ast.IfExp):
        return _worked_out(node.body, seen) or _worked_out(node.orelse, seen)
    if isinstance(node, ast.List | ast.Tuple):
        return any(_worked_out(item, seen) for item in node.elts)
    return seen.carries(node.value if isinstance(node, ast.Subscript) else node)


def _valued(node: ast.Dict) -> Iterator[Finding]:
    keys = {k.value for k in node.keys if isinstance(k, ast.Constant) and isinstance(k.value, str)}
    numbers = [v for v in node.values if isinstance(v, ast.Constant) and type(v.value) in (int, float)]
    if len(keys & _PIECES) >= 4 and len(numbers) == len(node.values):
        yield found(node, "holds a table of the pieces' values")
