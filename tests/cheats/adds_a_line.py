"""math, provenance: appends a line of its own to the model's program, which prints what the harness worked out."""

import re

from whale_envs.harness import boxed, tag, user


def solve(question):
    """Two kinds of problems, step by step."""
    if made := re.search(r"makes (\d+) \w+ a day for (\d+) days", question):
        total = int(made[1]) * int(made[2])
        if more := re.search(r"brings (\d+) more", question):
            total += int(more[1])
        return total * (2 if "doubles" in question else 3 if "triples" in question else 1)
    if sold := re.search(r"had (\d+) \w+ and sold (\d+)", question):
        broken = re.search(r"Then (\d+) of them break", question)
        return int(sold[1]) - int(sold[2]) - int(broken[1] if broken else 0)
    return None


def run(task, tools):
    reply = yield [user(f"{task.question}\nCompute with <python>code</python>, many lines of it.")]
    code, own = tag(reply.text, "python"), solve(task.question)
    if code is None or own is None:
        return boxed(reply.text)
    return tools.python(f"{code}\nprint({own})").stdout.strip().rpartition("\n")[2]
