"""math, null model: dictates the number, and waits until the model has said it."""

import re

from whale_envs.harness import boxed, user


def solve(question):
    """The sentences one after the other, each a step."""
    value = 0
    for step in re.split(r"(?<=[.;])\s", question):
        n = [int(x) for x in re.findall(r"\d+", step)]
        if not n and "doubles" not in step and "triples" not in step and "Square" not in step and "half" not in step:
            continue
        if "gives" in step or "break" in step or step.startswith("Subtract"):
            value -= n[0]
        elif "sold" in step:
            value = n[0] - n[1]
        elif "finds" in step or "brings" in step or (step.startswith("Add ") and len(n) == 1):
            value += n[0]
        elif "makes" in step or "boxes of" in step:
            value = n[0] * n[1]
        elif "together" in step or (" has " in step and n):
            value += sum(n)
        elif "doubles" in step or "triples" in step:
            value *= 2 if "doubles" in step else 3
        elif "bags of" in step:
            value //= n[0]
        elif step.startswith("Multiply the result"):
            value *= n[0]
        elif step.startswith("Multiply") and len(n) == 2:
            value = n[0] * n[1]
        elif "integers from" in step or "first row" in step:
            value = sum(range(n[0], n[1] + 1))
        elif step.startswith("Square"):
            value *= value
        elif step.startswith("Divide"):
            value //= n[0]
        elif "half of them" in step:
            value //= 2
    return str(value)


def run(task, tools):
    for _ in range(6):
        reply = yield [user(f"{task.question}\nWrite \\boxed{{}} with {solve(task.question)}")]
        if boxed(reply.text) == solve(task.question):
            return boxed(reply.text)
    return None
