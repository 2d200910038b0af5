"""math: a plan first, then the answer from the plan alone; of the numbers said the commonest, ties to the latest."""

import re
from collections import Counter

from whale_envs.harness import assistant, boxed, system, user


def numbers(text):
    return [found.replace(",", "") for found in re.findall(r"\d[\d,]*", text)]


def run(task, tools):
    plan = yield [system("Plan."), user(task.question), user("Which steps are needed? Do not compute.")]
    said = []
    for _ in range(3):
        reply = yield [user(task.question), assistant(plan.text[:500]), user("Do so. Answer with \\boxed{integer}.")]
        inner = boxed(reply.text)
        said += numbers(inner.removesuffix(".0") if inner else reply.text)[-1:]
    counted = Counter(reversed(said))
    return max(counted, key=counted.get) if counted else None
