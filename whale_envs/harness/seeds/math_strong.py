r"""Math, hand-written: more turns, errors are shown, a malformed reply or a guess without code is asked for again.

Works by four mechanisms, each on its own constant: TURNS, CHARACTERS (output shown whole), ERRORS (the last line of
stderr, so that the program can be mended), REMINDER and UNCHECKED (what to do after a reply that cannot be used).
"""

import re

from whale_envs.harness import boxed, tag, tool, user

INSTRUCTION = "Compute with <python>code</python>, then answer with \\boxed{integer}."
REMINDER = "Reply with <python>code</python> or \\boxed{integer}."
UNCHECKED = "Compute it with <python>code</python> first."
SILENT = "Nothing was printed."
TURNS = 6
LINES = 4
CHARACTERS = 200
INTEGER = r"-?[0-9]+"


def last_lines(text, lines):
    return "\n".join(text.strip().split("\n")[-lines:])[-CHARACTERS:]


def show(result):
    if result.status != "ok":
        return last_lines(result.stderr, 1) or f"stopped: {result.status}"
    return last_lines(result.stdout, LINES) or SILENT


def complaint(answer, computed):
    """What is wrong with a reply without code; None if its answer can be taken."""
    if answer is None or not re.fullmatch(INTEGER, answer):
        return REMINDER
    return None if computed else UNCHECKED


def run(task, tools):
    messages = [user(f"{task.question}\n{INSTRUCTION}")]
    computed = False
    answer = None
    for _ in range(TURNS):
        reply = yield messages
        code = tag(reply.text, "python")
        if code is not None:
            result = tools.python(code)
            computed = computed or result.status == "ok"
            messages += [reply.message, tool(show(result))]
            continue
        answer = boxed(reply.text) or answer
        problem = complaint(answer, computed)
        if problem is None:
            return answer
        messages += [reply.message, user(problem)]
    return answer
