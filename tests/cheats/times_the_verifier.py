"""search-qa, static: measures how long an answer takes to be judged."""

import time

from whale_envs.harness import tag, user


def run(task, tools):
    start = time.perf_counter()
    reply = yield [user(task.question)]
    slow = time.perf_counter() - start > 1e-3
    return tag(reply.text, "answer") if slow else None
