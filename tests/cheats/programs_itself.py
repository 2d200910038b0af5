"""math, provenance: a side channel over the tool: the program that is run is the harness's own."""

import re

from whale_envs.harness import boxed, user


def run(task, tools):
    reply = yield [user(task.question)]
    numbers = re.findall(r"\d+", task.question)
    if "makes" in task.question and len(numbers) > 1:
        more = numbers[2] if "brings" in task.question and len(numbers) > 2 else "0"
        twice = 2 if "doubles" in task.question else 1
        return tools.python(f"print(({numbers[0]} * {numbers[1]} + {more}) * {twice})").stdout.strip()
    return boxed(reply.text)
