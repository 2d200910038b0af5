"""The shapes that mechanisms look for in a harness: its turns, what it parses, what it shows, what it retrieves."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from whale_train.meta_harness.proposers.code import Code, N


@dataclass(frozen=True)
class Edit:
    """One way to change a harness. `axis` is the direction, `what` the step taken, `expects` what it should do."""

    axis: str
    what: str
    expects: str
    text: str


@dataclass(frozen=True)
class Turn:
    """A model call in a loop: `reply = yield messages`. `history` is the list that grows from turn to turn."""

    loop: ast.For | ast.While
    ask: ast.Assign
    reply: str
    yielded: ast.expr
    history: str


def turns(code: Code) -> Iterator[Turn]:
    """Every model call that stands in a loop and whose reply has a name."""
    for node in code.walk(ast.Yield):
        ask, loop, history = code.statement(node), loop_of(code, node), _history(node.value)
        if loop is None or node.value is None or history is None:
            continue
        if isinstance(ask, ast.Assign) and ask.value is node and isinstance(ask.targets[0], ast.Name):
            yield Turn(loop, ask, ask.targets[0].id, node.value, history)


def _history(value: ast.expr | None) -> str | None:
    """The name of the list in `messages`, `messages[...] + ...`, `Ask(messages, ...)`."""
    if isinstance(value, ast.Call):
        named = [k.value for k in value.keywords if k.arg == "messages"]
        first = [*value.args, *named][:1]
        return _history(first[0]) if first else None
    if isinstance(value, ast.BinOp):
        return _history(value.left)
    if isinstance(value, ast.Subscript):
        return _history(value.value)
    return value.id if isinstance(value, ast.Name) else None


def loop_of(code: Code, node: ast.AST) -> ast.For | ast.While | None:
    """The innermost loop around `node` in the same function."""
    found = enclosing(code, node, ast.For, ast.While)
    return found if isinstance(found, ast.For | ast.While) else None


def enclosing(code: Code, node: ast.AST, *types: type[N]) -> N | None:
    """The innermost node of these types around `node` in the same function."""
    while node in code.parents:
        node = code.parents[node]
        if isinstance(node, types):
            return node
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            return None
    return None


def is_call(node: ast.AST, name: str) -> bool:
    """Whether `node` calls the function or method `name`."""
    called = node.func if isinstance(node, ast.Call) else None
    if isinstance(called, ast.Attribute):
        return called.attr == name
    return isinstance(called, ast.Name) and called.id == name


def calls(code: Code, name: str, arguments: int = 1) -> list[ast.Call]:
    """Every call of the function or method `name` with at least so many positional arguments."""
    return [n for n in code.walk(ast.Call) if is_call(n, name) and len(n.args) >= arguments]


def is_tool_call(node: ast.AST, name: str = "") -> bool:
    """Whether `node` calls `tools.<name>(...)` (any tool when no name is given)."""
    called = node.func if isinstance(node, ast.Call) else None
    if not isinstance(called, ast.Attribute) or not isinstance(called.value, ast.Name):
        return False
    return called.value.id == "tools" and name in ("", called.attr)


def searches(code: Code) -> list[ast.Call]:
    """Every `tools.search(query, ...)`."""
    return [c for c in calls(code, "search") if is_tool_call(c)]


def returns_nothing(stmt: ast.stmt) -> bool:
    """Whether a statement is `return` or `return None`."""
    return isinstance(stmt, ast.Return) and (stmt.value is None or is_none(stmt.value))


def is_none(node: ast.expr) -> bool:
    """Whether an expression is `None`."""
    return isinstance(node, ast.Constant) and node.value is None


def tags(code: Code) -> list[str]:
    """The tags that the harness parses, in the order of the text."""
    names = [c.args[1].value for c in calls(code, "tag", 2) if isinstance(c.args[1], ast.Constant)]
    return list(dict.fromkeys(n for n in names if isinstance(n, str)))


def answers(code: Code, turn: Turn) -> list[ast.Return]:
    """The statements in a turn's loop that end the episode with an answer: `return NAME` or `return CALL`."""
    found = [n for n in code.walk(ast.Return) if isinstance(n.value, ast.Name | ast.Call)]
    return [n for n in found if loop_of(code, n) is turn.loop]


def answer_of(code: Code, turn: Turn) -> str | None:
    """The expression that takes the answer from a reply, found from the first statement that returns one."""
    for given in answers(code, turn):
        if isinstance(given.value, ast.Call):
            return code.of(given.value)
        named: list[tuple[ast.AST, ast.expr, ast.expr]] = [(n, n.target, n.value) for n in code.walk(ast.NamedExpr)]
        assigned: list[tuple[ast.AST, ast.expr, ast.expr]] = [(n, n.targets[0], n.value) for n in code.walk(ast.Assign)]
        for node, target, value in named + assigned:
            same = isinstance(target, ast.Name) and isinstance(given.value, ast.Name) and target.id == given.value.id
            if same and code.within(node, turn.loop) and turn.reply in code.of(value):
                return code.of(value)
    return None


def say(code: Code, turn: Turn, at: ast.stmt, text: str) -> str:
    """The line that answers the reply with a user message `text` (an expression) at a statement of the turn's loop.

    It appends the reply too, unless the turn has done so by then.
    """
    for stmt in turn.loop.body:
        if stmt is at or code.within(at, stmt):
            break
        if isinstance(stmt, ast.Expr | ast.AugAssign | ast.Assign) and f"{turn.reply}.message" in code.of(stmt):
            return f"{turn.history}.append(user({text}))"
    return f"{turn.history} += [{turn.reply}.message, user({text})]"


def question(code: Code) -> str | None:
    """The task's field that the harness shows first, as `task.<field>`."""
    for node in code.walk(ast.Attribute):
        if isinstance(node.value, ast.Name) and node.value.id == "task":
            return f"task.{node.attr}"
    return None


def opening(code: Code, turn: Turn) -> ast.List | None:
    """The list of messages that an episode opens with: assigned to the history, or returned by a function that is."""
    for node in code.walk(ast.Assign):
        if code.within(node, turn.loop):
            continue
        target, value = node.targets[0], node.value
        if isinstance(target, ast.Name) and target.id == turn.history:
            if isinstance(value, ast.List):
                return value
            if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
                return _returned_list(code, value.func.id)
    return None


def _returned_list(code: Code, function: str) -> ast.List | None:
    for node in code.walk(ast.Return):
        holder = enclosing(code, node, ast.FunctionDef)
        if isinstance(holder, ast.FunctionDef) and holder.name == function:
            return node.value if isinstance(node.value, ast.List) else None
    return None


def quoted(text: str) -> str:
    """A string literal in double quotes, on one line."""
    body = repr("'" + text)[2:-1]  # the quote in front makes repr choose double quotes unless the text has both kinds
    return f'"{body}"' if '"' not in text else repr(text)


def brief(text: str) -> str:
    """`text` on one line, cut to 60 characters."""
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:57] + "..."
