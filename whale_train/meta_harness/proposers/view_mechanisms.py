"""Mechanisms that change what the model sees of a tool's result, and what the tool is asked.

As in `turn_mechanisms`: found by shape, every edit that is known there, and no word on which of them help.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from whale_train.meta_harness.proposers.code import Change, Code
from whale_train.meta_harness.proposers.shapes import (
    Edit,
    brief,
    calls,
    enclosing,
    is_none,
    loop_of,
    question,
    quoted,
    searches,
    turns,
)


def passages(code: Code) -> Iterator[Edit]:
    """Of a passage, show its head, the sentences nearest to the query or to the task, or all of it."""
    for call in [*calls(code, "head", 1), *calls(code, "snippets", 2)]:
        if not isinstance(call.func, ast.Attribute):
            continue
        passage = code.of(call.func.value)
        if isinstance(call.func.value, ast.Name):
            expects = "the part shown leaves out the sentence that answers; whole passages hold it"
            yield Edit(
                "whole passages",
                passage,
                expects,
                code.edited(code.replace(call, f'{passage}.title + "\\n" + {passage}.text')),
            )
        if call.func.attr == "snippets":
            name = code.fresh("WORDS")
            changes = _resized(code, call.args[1], name, 48)
            yield Edit(
                "heads",
                "48 words",
                "the first words of a passage say what it is about; picked sentences lose that",
                code.edited(code.replace(call, f"{passage}.head({name})"), *changes),
            )
            continue
        for query, of in _queries(code, call):
            for count in (2, 3):
                name = code.fresh("SENTENCES")
                new = f"{passage}.snippets({query}, {name})"
                expects = (
                    f"the {count} sentences nearest to the {of} hold the answer more often than the head of the passage"
                )
                changes = [code.replace(call, new), *_resized(code, call.args[0], name, count)]
                yield Edit(f"snippets by {of}", f"{count} sentences", expects, code.edited(*changes))


def queries(code: Code) -> Iterator[Edit]:
    """Ask the search tool something else: the task beside the query, or when there is no query or nothing was found."""
    field = question(code)
    for call in searches(code) if field else ():
        assert field is not None
        query = call.args[0]
        asked = code.of(query)
        if field not in asked:
            wide = f'f"{{{asked}}} {{{field}}}"' if isinstance(query, ast.Name) else f'({asked}) + " " + str({field})'
            expects = "the task's own words beside the query find the passage that a terse query misses"
            yield Edit("wider query", "query and task", expects, code.edited(code.replace(query, wide)))
        if field not in asked and not isinstance(code.parents[call], ast.BoolOp):
            rest = ", ".join([str(field), *(f"{k.arg}={code.of(k.value)}" for k in call.keywords)])
            expects = "a query that finds nothing falls back on the task itself"
            yield Edit(
                "search again",
                "the task itself",
                expects,
                code.edited(code.replace(call, f"({code.of(call)} or tools.search({rest}))")),
            )
        if isinstance(query, ast.BoolOp) and isinstance(query.values[-1], ast.Constant):
            expects = "a reply without a query searches for the task instead of nothing"
            yield Edit(
                "query from task", "when there is none", expects, code.edited(code.replace(query.values[-1], field))
            )


def search_first(code: Code) -> Iterator[Edit]:
    """Search for the task before the first turn, so that the model starts with something to read."""
    field = question(code)
    for turn in turns(code) if field else ():
        for call in searches(code):
            if not code.within(call, turn.loop) or any(not code.within(c, turn.loop) for c in searches(code)):
                continue
            options = "".join(f", {k.arg}={code.of(k.value)}" for k in call.keywords)
            found = f'"\\n".join(p.title + "\\n" + p.text for p in tools.search({field}{options}))'
            expects = "half of the searches are never made or badly put; one for the task itself comes free"
            yield Edit(
                "search first",
                "user message",
                expects,
                code.edited(code.before(turn.loop, f"{turn.history}.append(user({found}))"), *code.imports("user")),
            )


def skip_seen(code: Code) -> Iterator[Edit]:
    """Of what a search finds, show what has not been shown before."""
    for call in searches(code) if "seen" not in code.names() else ():
        stmt, loop = code.statement(call), loop_of(code, call)
        if loop is None or not isinstance(stmt, ast.Assign) or not isinstance(stmt.targets[0], ast.Name):
            continue
        found, seen = stmt.targets[0].id, "seen"
        lines = f"{found} = [p for p in {found} if p.id not in {seen}] or {found}\n{seen}.update(p.id for p in {found})"
        expects = "a passage shown twice tells nothing; the next one may hold the answer"
        yield Edit(
            "skip seen",
            "passages",
            expects,
            code.edited(code.after(stmt, lines), code.before(loop, f"{seen} = set()")),
        )


def uncut(code: Code) -> Iterator[Edit]:
    """Show all of what a slice cuts."""
    for node in code.walk(ast.Subscript):
        if isinstance(node.slice, ast.Slice) and node.slice.step is None:
            what = brief(code.of(node))
            expects = f"the part that {what} leaves out is what the model needs"
            yield Edit("uncut", what, expects, code.edited(code.replace(node, code.of(node.value))))


def say_when_empty(code: Code) -> Iterator[Edit]:
    """Say so when a tool has nothing to show."""
    for call in calls(code, "tool", 1):
        shown = call.args[0]
        if not isinstance(shown, ast.BoolOp):
            expects = "an empty result reads like an answer; told that there is none, the model tries something else"
            spoken = f"{_operand(code, shown)} or {quoted('Nothing was found. Try again.')}"
            yield Edit("say when empty", "a tool's result", expects, code.edited(code.replace(shown, spoken)))


def error_feedback(code: Code) -> Iterator[Edit]:
    """Where a program's output is shown, show the error of one that failed."""
    for node in code.walk(ast.Attribute):
        if node.attr != "stdout" or not isinstance(node.value, ast.Name):
            continue
        result, expects = node.value.id, "a program that failed shows its error, and the next one mends it"
        yield Edit(
            "error feedback",
            "in place of the output",
            expects,
            code.edited(code.replace(node, f"({result}.stdout or {result}.stderr)")),
        )
        holder = enclosing(code, node, ast.FunctionDef)
        if holder and holder.name != "run" and result in [a.arg for a in holder.args.args]:
            line = (
                f'if {result}.status != "ok":\n    return {result}.stderr.strip().split("\\n")[-1] or {result}.status'
            )
            yield Edit(
                "error feedback", "its last line, whole", expects, code.edited(code.before(holder.body[0], line))
            )


def drop_condition(code: Code) -> Iterator[Edit]:
    """Take a value whether or not a condition holds."""
    for node in code.walk(ast.IfExp):
        if is_none(node.orelse):
            expects = f"what fails `{code.of(node.test)}` is good enough"
            yield Edit(
                "drop condition", code.of(node.test), expects, code.edited(code.replace(node, code.of(node.body)))
            )


def rows(code: Code) -> Iterator[Edit]:
    """Rows of legal moves: mark or group them by kind (the board's order within a group), or show one name of each."""
    for join in calls(code, "join", 1):
        source = join.args[0]
        if not isinstance(source, ast.GeneratorExp) or not isinstance(source.elt, ast.JoinedStr):
            continue
        loop = source.generators[0]
        pair = loop.target.elts if isinstance(loop.target, ast.Tuple) else []
        names = [n.id for n in pair if isinstance(n, ast.Name)]
        if len(names) != 2 or ".legal" not in code.of(loop.iter):
            continue
        first, second = names
        for shown in names:
            expects = f"one name a move is easier to read than two: {shown} alone"
            yield Edit("one name a row", shown, expects, code.edited(code.replace(source.elt, shown)))
        kind = "kind" if "kind" not in code.names() else code.fresh("kind")
        marked = f'f"{{{first}}} {{{second}}} {{{kind}({second})}}"'
        expects = "a word for checks and captures beside each move says more than a sign in its name"
        yield Edit(
            "mark rows", "kind of move", expects, code.edited(code.replace(source.elt, marked), _kind(code, kind))
        )
        group = code.fresh("grouped")
        call = f"{group}({code.of(loop.iter)})"
        expects = "checks, captures and other moves in groups are easier to choose from than one long list"
        changes = [code.replace(join, call), _kind(code, kind, _GROUPED.format(group=group, kind=kind))]
        yield Edit("group rows", "kind of move", expects, code.edited(*changes))


_KIND = """def {kind}(san):
    if san[-1] in "+#":
        return "check"
    return "capture" if "x" in san else "other"


"""

_GROUPED = """def {group}(moves):
    groups = {{"check": [], "capture": [], "other": []}}
    for uci, san in moves:
        groups[{kind}(san)].append(f"{{uci}} {{san}}")
    return "\\n".join("\\n".join([f"{{name}}:", *rows]) for name, rows in groups.items() if rows)


"""


def _kind(code: Code, kind: str, more: str = "") -> Change:
    """The function that names a move's kind, before the module's first function."""
    first = next(s for s in code.tree.body if isinstance(s, ast.FunctionDef))
    start, _ = code.span(first)
    return Change(start, start, _KIND.format(kind=kind) + more)


def _operand(code: Code, node: ast.expr) -> str:
    return f"({code.of(node)})" if isinstance(node, ast.IfExp | ast.Lambda | ast.NamedExpr) else code.of(node)


def _queries(code: Code, call: ast.Call) -> Iterator[tuple[str, str]]:
    """Expressions that are in reach of `call` and say what is looked for, each with what it is."""
    holder = enclosing(code, call, ast.FunctionDef)
    for search in searches(code):
        if isinstance(search.args[0], ast.Name) and holder is enclosing(code, search, ast.FunctionDef):
            yield search.args[0].id, "query"
            break
    else:
        for search in searches(code):
            yield code.of(search.args[0]), "query"
            break
    field = question(code)
    if field and holder and "task" in [a.arg for a in holder.args.args]:
        yield field, "task"


def _resized(code: Code, size: ast.expr, name: str, value: int) -> list[Change]:
    """The constant `name = value`, in the place of the one that `size` names if nothing else uses it."""
    if isinstance(size, ast.Name):
        uses = sum(isinstance(n, ast.Name) and n.id == size.id for n in ast.walk(code.tree))
        for stmt in code.tree.body:
            if isinstance(stmt, ast.Assign) and uses == 2 and code.of(stmt.targets[0]) == size.id:
                return [code.replace(stmt, f"{name} = {value}")]
    return [code.define(name, str(value))]


VIEW_MECHANISMS = (
    passages,
    queries,
    search_first,
    skip_seen,
    uncut,
    say_when_empty,
    error_feedback,
    drop_condition,
    rows,
)
