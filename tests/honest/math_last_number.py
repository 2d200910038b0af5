"""math: without a box, the last whole number of the reply; reminded of the box once, in a fresh context."""

import re

from whale_envs.harness import boxed, tag, tool, user


def run(task, tools):
    opening = [user(f"{task.question}\nCompute with <python>code</python>, then answer with \\boxed{{integer}}.")]
    messages, reminded = opening, False
    for _ in range(6):
        reply = yield messages
        code = tag(reply.text, "python")
        if code:
            result = tools.python(code)
            messages = [*opening, reply.message, tool((result.stdout or result.stderr).strip()[-200:])]
            continue
        numbers = re.findall(r"-?\d+", reply.text)
        answer = boxed(reply.text) or (numbers[-1] if reminded and numbers else None)
        if answer:
            return answer
        messages, reminded = [*messages, reply.message, user("Put the answer in \\boxed{}.")], True
    return None
