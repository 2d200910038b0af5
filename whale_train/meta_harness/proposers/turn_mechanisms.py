"""Mechanisms that change how an episode goes: what follows a bad reply, how it ends, what the context keeps.

Each takes a harness apart by its shape alone and yields every edit that it knows there; none knows which of them help.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from whale_train.meta_harness.proposers.code import Code
from whale_train.meta_harness.proposers.shapes import (
    Edit,
    Turn,
    answer_of,
    answers,
    brief,
    calls,
    enclosing,
    is_call,
    is_tool_call,
    loop_of,
    opening,
    question,
    quoted,
    returns_nothing,
    say,
    tags,
    turns,
)


def reminder(code: Code) -> Iterator[Edit]:
    """Where a reply in the wrong format ends the episode or slips through, say what is expected and go on."""
    for turn in turns(code):
        for text in _reminders(code):
            name = code.fresh("REMINDER")
            new = [code.define(name, quoted(text)), *code.imports("user")]
            expects = (
                f"a reply in the wrong format no longer costs the episode: the model is told {text!r} and asked again"
            )
            for exit in _exits(code, turn):
                told = say(code, turn, exit, name) + "\ncontinue"
                yield Edit(
                    "reminder",
                    f"{_when(code, exit)}: {text}",
                    expects,
                    code.edited(code.replace(exit, told), *new),
                )
            for guarded, test in _unguarded(code, turn):
                lines = f"if not {test}:\n    {say(code, turn, guarded, name)}\n    continue"
                yield Edit(
                    "reminder", f"before {test}: {text}", expects, code.edited(code.before(guarded, lines), *new)
                )


def retry(code: Code) -> Iterator[Edit]:
    """Where a reply in the wrong format ends the episode, ask the same again with the reply forgotten."""
    for turn in turns(code):
        for exit in _exits(code, turn):
            expects = (
                "a reply in the wrong format is forgotten and asked for again; another sample is often well-formed"
            )
            yield Edit("retry", _when(code, exit), expects, code.edited(code.replace(exit, "continue")))


def last_chance(code: Code) -> Iterator[Edit]:
    """When the turns are used up without an answer, ask for one once more."""
    for turn in turns(code):
        answer = answer_of(code, turn)
        holder = code.parents[turn.loop]
        body = getattr(holder, "body", [])
        after = body[body.index(turn.loop) + 1 :] if turn.loop in body else []
        end = next((s for s in after if returns_nothing(s)), None)
        if answer is None or end is None or len(after) > 1 or turn.loop.orelse:
            continue
        for text in ("No turns are left. Give the final answer now.", "Give your best answer."):
            expects = f"episodes that run out of turns answer from what they have seen, told {text!r}"
            asked = f"{turn.history}.append(user({quoted(text)}))\n{turn.reply} = yield {code.of(turn.yielded)}"
            lines = f"{asked}\nreturn {answer}"
            yield Edit("last chance", text, expects, code.edited(code.replace(end, lines), *code.imports("user")))


def double_check(code: Code) -> Iterator[Edit]:
    """Before the first answer counts, ask the model to look at it again."""
    for turn in turns(code) if "checked" not in code.names() else ():
        for given in answers(code, turn):
            flag = "checked"
            ask = quoted("Check this against what is shown above, then answer in the same format.")
            lines = (
                f"if not {flag}:\n    {flag} = True\n    {say(code, turn, given, ask)}\n    continue\n{code.of(given)}"
            )
            expects = "a hasty answer is corrected on a second look, at the cost of a turn"
            changes = [code.replace(given, lines), code.before(turn.loop, f"{flag} = False"), *code.imports("user")]
            yield Edit("double check", f"before `{code.of(given)}`", expects, code.edited(*changes))


def tool_first(code: Code) -> Iterator[Edit]:
    """An answer counts only after a tool has been used."""
    for turn in turns(code) if "looked" not in code.names() else ():
        uses = [c for c in code.walk(ast.Call) if code.within(c, turn.loop) and is_tool_call(c)]
        stmts = list(dict.fromkeys(code.statement(c) for c in uses))
        for given in answers(code, turn):
            if not stmts or stmts[0].lineno < given.lineno:  # a tool is used before any answer as it is
                continue
            flag = "looked"
            ask = quoted("Do not answer yet: use the tool first.")
            lines = f"if not {flag}:\n    {say(code, turn, given, ask)}\n    continue\n{code.of(given)}"
            changes = [code.replace(given, lines), code.before(turn.loop, f"{flag} = False"), *code.imports("user")]
            changes += [code.after(s, f"{flag} = True") for s in stmts]
            expects = "answers from memory, without a look at the tool, are mostly wrong; sent back, they become right"
            yield Edit("tool first", f"before `{code.of(given)}`", expects, code.edited(*changes))


def short_history(code: Code) -> Iterator[Edit]:
    """Show the opening and the last exchange only."""
    for turn in turns(code):
        opens = opening(code, turn)
        if opens is None or not isinstance(turn.yielded, ast.Name):
            continue
        keep = len(opens.elts)
        shown = f"{turn.history}[:{keep}] + {turn.history}[{keep}:][-2:]"
        expects = "earlier exchanges distract: with the last one alone the model reads what counts"
        yield Edit("short history", "last exchange", expects, code.edited(code.replace(turn.yielded, shown)))


def fresh_context(code: Code) -> Iterator[Edit]:
    """Show each result beside the opening alone, or in place of what the opening showed; earlier exchanges are gone."""
    for turn in turns(code):
        opens = opening(code, turn)
        for node in code.walk(ast.Expr, ast.AugAssign):
            shown = _last_shown(node, turn.history)
            if opens is None or shown is None or not code.within(node, turn.loop):
                continue
            for keep, what in ((len(opens.elts), "beside the opening"), (len(opens.elts) - 1, "in its place")):
                line = f"{turn.history} = {turn.history}[:{keep}] + [{code.of(shown)}]"
                expects = f"with only the newest result {what} in view, earlier exchanges cannot mislead the model"
                yield Edit(
                    "fresh context", f"{brief(code.of(shown))} {what}", expects, code.edited(code.replace(node, line))
                )


def turns_left(code: Code) -> Iterator[Edit]:
    """Say before each turn but the first how many are left."""
    for turn in turns(code) if "turns left" not in code.text.partition("import")[2] else ():
        loop = turn.loop
        if not isinstance(loop, ast.For) or not isinstance(loop.target, ast.Name):
            continue
        if not isinstance(loop.iter, ast.Call) or not is_call(loop.iter, "range") or len(loop.iter.args) != 1:
            continue
        name = code.fresh("turn") if loop.target.id == "_" else loop.target.id
        renamed = [code.replace(loop.target, name)] if name != loop.target.id else []
        left = f'if {name}:\n    {turn.history}.append(user(f"{{{code.of(loop.iter.args[0])} - {name}}} turns left."))'
        expects = "knowing how many turns are left, the model answers in time"
        yield Edit(
            "turns left",
            "user message",
            expects,
            code.edited(code.before(turn.ask, left), *renamed, *code.imports("user")),
        )


def lenient(code: Code) -> Iterator[Edit]:
    """Accept what is nearly in the expected format."""
    for call in calls(code, "tag", 2):
        text, name = code.of(call.args[0]), call.args[1]
        if isinstance(name, ast.Constant) and isinstance(name.value, str) and "</" not in text:
            expects = f"a <{name.value}> that is never closed (a reply cut off, say) still counts"
            accepts = f'tag({text} + "</{name.value}>", {code.of(name)})'
            yield Edit(f"lenient {name.value}", "closing tag", expects, code.edited(code.replace(call, accepts)))
    for call in calls(code, "boxed", 1):
        if isinstance(code.parents[call], ast.BoolOp):
            continue
        text = code.of(call.args[0])
        accepts = f'({code.of(call)} or (re.findall(r"-?\\d+", {text}) or [None])[-1])'
        expects = "a reply without a box still answers, with the last whole number in it"
        yield Edit(
            "lenient boxed",
            "last whole number",
            expects,
            code.edited(code.replace(call, accepts), *code.imports_module("re")),
        )


def _reminders(code: Code) -> list[str]:
    forms = [f"<{t}>...</{t}>" for t in tags(code)] + (["\\boxed{...}"] if calls(code, "boxed") else [])
    if not forms:
        return ["That was not in the expected format. Try again."]
    return [f"Write {' or '.join(forms)}.", f"That was not in the expected format. Reply with {' or '.join(forms)}."]


def _last_shown(node: ast.AST, history: str) -> ast.expr | None:
    """The tool or user message that `history.append(...)` or `history += [...]` ends with."""
    last: ast.expr | None = None
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
        called = node.value.func
        if called.attr == "append" and isinstance(called.value, ast.Name) and called.value.id == history:
            last = node.value.args[0]
    elif isinstance(node, ast.AugAssign) and isinstance(node.value, ast.List) and node.value.elts:
        last = node.value.elts[-1] if isinstance(node.target, ast.Name) and node.target.id == history else None
    return last if last is not None and (is_call(last, "tool") or is_call(last, "user")) else None


def _when(code: Code, exit: ast.stmt) -> str:
    """The condition under which a statement is reached, as far as the `if` around it says it."""
    test = enclosing(code, exit, ast.If)
    return f"when `{code.of(test.test)}`" if test else f"at `{code.of(exit)}`"


def _exits(code: Code, turn: Turn) -> list[ast.stmt]:
    """The statements in a turn's loop that end the episode with nothing: `return None`, or `break` before one."""
    found: list[ast.stmt] = []
    for node in code.walk(ast.Return, ast.Break):
        inside = code.within(node, turn.loop) and node.lineno > turn.ask.lineno
        if not inside or loop_of(code, node) is not turn.loop:
            continue
        if isinstance(node, ast.Break) or returns_nothing(node):
            found.append(node)
    return found


def _unguarded(code: Code, turn: Turn) -> Iterator[tuple[ast.stmt, str]]:
    """Statements of a turn that go on with `tag(...) or ""` or the like when there is no tag, with the tag's call."""
    for node in code.walk(ast.BoolOp):
        if not isinstance(node.op, ast.Or) or not isinstance(node.values[0], ast.Call):
            continue
        stmt = code.statement(node)
        parsed = code.of(node.values[0])
        if stmt in turn.loop.body and f"{turn.reply}.text" in parsed and parsed.startswith(("tag(", "boxed(")):
            yield stmt, parsed


def repeat_task(code: Code) -> Iterator[Edit]:
    """Repeat the task after each tool result."""
    field = question(code)
    for call in calls(code, "tool", 1):
        shown = code.of(call.args[0])
        if field is None or field in shown:
            continue
        simple = isinstance(call.args[0], ast.Call | ast.Name | ast.Constant | ast.JoinedStr | ast.Attribute)
        longer = f'{shown if simple else f"({shown})"} + "\\n" + str({field})'
        expects = "the task right after the result keeps the model from answering another question"
        yield Edit("repeat the task", "after a result", expects, code.edited(code.replace(call.args[0], longer)))


TURN_MECHANISMS = (
    reminder,
    retry,
    last_chance,
    double_check,
    short_history,
    turns_left,
    lenient,
    repeat_task,
    tool_first,
    fresh_context,
)
