"""Harnesses that misbehave when they are told to, for the tests of the jail."""

from __future__ import annotations

from whale_envs import Episode, HarnessEnv
from whale_envs.harness.jail import JailLimits

QUICK = JailLimits(seconds=0.3, memory_mb=128)

#: How a harness gets at what it was not given: every allowed module leads to `sys`.
REACH = "import dataclasses\nsys = dataclasses.sys\nos = sys.modules['os']\nsocket = sys.modules['socket']\n"

#: A harness that misbehaves when it is told to, and otherwise counts its turns, its draws and its tool's answers.
MIXED = (
    REACH
    + """
from whale_envs.harness import *
import random
def run(task, tools):
    seen = []
    while True:
        reply = yield [user(task.question), user(repr(seen))]
        if reply.text == "stop":
            return seen
        if reply.text == "hang":
            while True: pass
        if reply.text == "sleep":
            sys.modules["time"].sleep(60)
        if reply.text == "work":
            while sys.modules["time"].process_time() < 0.2: pass
        if reply.text == "die":
            os._exit(3)
        if reply.text == "overflow":
            sys.setrecursionlimit(10**9)
            one, other = [], []
            for _ in range(10**5): one, other = [one], [other]
            one == other
        if reply.text == "fill":
            x = [bytearray(1 << 20) for _ in range(4096)]
        seen.append([reply.text, random.random(), tools.look(reply.text)[0].text])
"""
)

#: A harness that executes what the reply says, with `os`, `sys` and `socket` at hand.
REACHING = (
    REACH
    + """
def run(task, tools):
    reply = yield [{"role": "user", "content": "?"}]
    try:
        exec(reply.text, globals())
    except Exception as error:
        return type(error).__name__
    return str(globals().get("x", "done"))
"""
)


def step(env: HarnessEnv, text: str) -> Episode | None:
    """One step; the episode if it has ended."""
    _, _, terminated, truncated, info = env.step(text)
    return info["record"] if terminated or truncated else None
