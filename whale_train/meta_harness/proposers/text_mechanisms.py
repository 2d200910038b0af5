"""Mechanisms that change constants: whole numbers up and down, and the sentences that the model is told."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from whale_train.meta_harness.proposers.code import Change, Code
from whale_train.meta_harness.proposers.shapes import Edit, calls, opening, quoted, turns

#: General sentences to tell a model. None names a domain's data; whether any helps is for the search to find.
SENTENCES = (
    "Think step by step.",
    "Be brief.",
    "Follow the format exactly.",
    "Use the tool before you answer.",
    "Do not guess: look it up first.",
    "Break the problem into smaller steps.",
    "Quote the line that you rely on before you answer.",
    "If a result does not help, try again in other words.",
    "Name exactly what you are looking for.",
    "Check the result before you give the final answer.",
    "Give only the answer, without an explanation.",
    "Read everything that is shown before you decide.",
)


def numbers(code: Code) -> Iterator[Edit]:
    """Whole numbers up and down: constants of the module, and numbers that stand in calls and slices."""
    places = [(name, node) for name, node in code.constants().items()]
    places += [(f"{_called(code, k)} {k.arg}", k.value) for k in code.walk(ast.keyword) if k.arg]
    for name in ("range", "head", "snippets"):
        places += [(name, call.args[-1]) for call in calls(code, name)]
    for cut in code.walk(ast.Slice):
        places += [("slice", end) for end in (cut.lower, cut.upper) if end is not None]
    for name, node in places:
        if not isinstance(node, ast.Constant) or type(node.value) is not int or node.value < 0:
            continue
        old = node.value
        for new in sorted({2 * old, 4 * old, *((old + 1, old - 1) if old < 8 else ()), old // 2} - {old}):
            if new < min(old, 1):
                continue
            way = "up" if new > old else "down"
            expects = f"{name} {old} is too {'small' if new > old else 'large'} for this model; {new} scores higher"
            yield Edit(f"{name} {way}", f"{old} to {new}", expects, code.edited(code.replace(node, str(new))))


def sentences(code: Code) -> Iterator[Edit]:
    """Add a sentence to what the model is told first, put one in its place, or take one away."""
    for role, node in _told(code):
        for sentence in SENTENCES:
            if sentence in code.of(node):
                continue
            expects = f"told {sentence!r} in the {role} prompt, the model does so"
            yield Edit(f"say more ({role})", sentence, expects, code.edited(_appended(code, node, " " + sentence)))
            if role == "system" and isinstance(node, ast.Constant):
                yield Edit(
                    f"say instead ({role})", sentence, expects, code.edited(code.replace(node, quoted(sentence)))
                )
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            parts = re.split(r"(?<=[.!?])\s+", node.value)
            for at, part in enumerate(parts if len(parts) > 1 else ()):
                rest = " ".join(parts[:at] + parts[at + 1 :])
                expects = f"the words {part!r} distract the model"
                yield Edit(f"say less ({role})", part, expects, code.edited(code.replace(node, quoted(rest))))


def system_prompt(code: Code) -> Iterator[Edit]:
    """Leave the system message out, or write one where there is none."""
    for turn in turns(code):
        opens = opening(code, turn)
        if opens is None or not opens.elts:
            continue
        if calls(code, "system"):
            first = opens.elts[0]
            if len(opens.elts) > 1 and isinstance(first, ast.Call) and code.of(first.func) == "system":
                gap = Change(code.span(first)[0], code.span(opens.elts[1])[0], "")
                yield Edit(
                    "no system prompt",
                    code.of(first),
                    "the system prompt takes room and adds nothing",
                    code.edited(gap),
                )
            continue
        for sentence in SENTENCES:
            start, _ = code.span(opens.elts[0])
            name = code.fresh("SYSTEM")
            changes = [
                Change(start, start, f"system({name}), "),
                code.define(name, quoted(sentence)),
                *code.imports("system"),
            ]
            yield Edit(
                "system prompt",
                sentence,
                f"told {sentence!r} in a system prompt, the model does so",
                code.edited(*changes),
            )


def _told(code: Code) -> Iterator[tuple[str, ast.expr]]:
    """The strings that the model is told in system and user messages, each with the message's role, each once."""
    constants, seen = code.constants(), set[ast.expr]()
    for role in ("system", "user"):
        for call in calls(code, role):
            inside = [n for n in ast.walk(call.args[0]) if isinstance(n, ast.Name)]
            named = [constants[n.id] for n in inside if n.id in constants]
            for node in [call.args[0], *named]:
                text = isinstance(node, ast.JoinedStr) or (
                    isinstance(node, ast.Constant) and isinstance(node.value, str)
                )
                if text and node not in seen:
                    seen.add(node)
                    yield role, node


def _appended(code: Code, node: ast.expr, text: str) -> Change:
    """Put `text` (no quote, brace or backslash in it) at the end of a string literal, before its closing quotes."""
    literal = code.of(node)
    quotes = 3 if literal.endswith(('"""', "'''")) else 1
    end = code.span(node)[1] - quotes
    return Change(end, end, text)


def _called(code: Code, keyword: ast.keyword) -> str:
    """The function that a keyword is given to."""
    call = code.parents[keyword]
    return code.of(call.func).rpartition(".")[2] if isinstance(call, ast.Call) else "class"


TEXT_MECHANISMS = (numbers, sentences, system_prompt)
