"""What a harness in a jail tries to reach, to find and to forge, in vain."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from jailed import MIXED, QUICK, REACHING, step
from sandbox_place import AS_NOBODY, ROOT, can_be_nobody, filtered
from toy_domain import Toy, toy_harness

from whale_envs import HarnessEnv
from whale_envs.harness.jail import Jail
from whale_envs.sandbox import isolation

REFUSALS = ("PermissionError", "OSError", "ModuleNotFoundError", "RuntimeError", "ValueError")
PROBES = {
    "reads a file": "open_ = os.open('/etc/passwd', 0)",
    "lists a folder": "x = os.listdir('/')",
    "finds a file": "x = os.stat('/')",
    "writes a file": "x = os.open('/tmp/whale-jail-probe', os.O_CREAT | os.O_WRONLY)",
    "forks": "x = os.fork()",
    "starts a thread": "x = sys.modules['_thread'].start_new_thread(int, ())",
    "writes what it inherited": "x = [os.write(n, b'x') for n in range(3)]",
    "runs a program": "x = os.execv('/bin/true', ['true'])",
    "opens a socket": "x = socket.socket()",
    "opens a local socket": "x = socket.socketpair()",
    "signals its parent": "x = os.kill(os.getppid(), 0)",
    "reads its parent": "x = os.open(f'/proc/{os.getppid()}/mem', 0)",
    "lifts its limits": "import_ = sys.modules['resource'].setrlimit(0, (-1, -1))",
    "imports from disk": "x = sys.modules['importlib'].import_module('http.client')",
}


@pytest.fixture(scope="module")
def reaching() -> Iterator[HarnessEnv]:
    made = Jail(toy_harness(REACHING, False), QUICK)
    yield HarnessEnv(Toy(), harness=made.harness, jail=made)
    made.close()


@pytest.mark.parametrize("name", PROBES)
def test_a_jailed_harness_cannot(reaching: HarnessEnv, name: str) -> None:
    reaching.reset(seed=0)
    episode = step(reaching, PROBES[name])
    assert episode is not None and episode.answer in REFUSALS


PROBED = f"""
import json, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_jail_escapes import *
from whale_envs.sandbox import tier
jail = Jail(toy_harness(REACHING, False), QUICK)
env, answers = HarnessEnv(Toy(), harness=jail.harness, jail=jail), {{}}
for name, probe in PROBES.items():
    env.reset(seed=0)
    answers[name] = step(env, probe).answer
jail.close()
print(json.dumps([os.geteuid(), tier(), answers]))
"""


@pytest.mark.parametrize(
    ("filter_name", "nobody", "expected"),
    [
        ("no namespaces", False, "B: "),
        ("no Landlock", False, "C: "),
        pytest.param("none", True, "", marks=pytest.mark.skipif(not can_be_nobody(), reason="needs root and setpriv")),
    ],
)
def test_a_jailed_harness_cannot_in_another_place(filter_name: str, nobody: bool, expected: str) -> None:
    command = [*(AS_NOBODY if nobody else ()), sys.executable, "-c", filtered(filter_name, PROBED)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    user, tier, answers = json.loads(done.stdout)
    assert tier.startswith(expected) and (not nobody or user != 0)
    assert answers.keys() == PROBES.keys() and set(answers.values()) <= set(REFUSALS), answers


def test_a_jailed_harness_cannot_find_the_answer(reaching: HarnessEnv) -> None:
    hunt = """
gc = sys.modules["importlib"].import_module("gc")
def hunt():  # a function's locals are in no dict, so that the hunt does not find itself
    gold = "-".join(("GOLD", "weight"))
    return [repr(o) for o in gc.get_objects() if isinstance(o, (dict, list, tuple)) and gold in repr(o)]
x = hunt(), sys.argv, sorted(os.environ), [m for m in sys.modules if "verif" in m or "domain" in m or "contract" in m]
"""
    reaching.reset(seed=0)
    episode = step(reaching, hunt)
    assert episode is not None
    found, arguments, environment, modules = ast.literal_eval(episode.answer)
    assert (found, arguments, modules) == ([], [""], [])
    assert set(environment) <= {*isolation.ENVIRONMENT, "LC_CTYPE", "PWD"}


#: Sets x to what stands after a mark on the pages that hold Python's objects, read without Python's own checks.
SCAN = """
ctypes, gc, re = (sys.modules["importlib"].import_module(n) for n in ("ctypes", "gc", "re"))
mark = "".join(reversed({!r})).encode()
own = mark + b"0" * 16
waiting, known = [own, sys.modules], {{id(own)}}
while waiting:
    for o in gc.get_referents(waiting.pop()):
        if id(o) not in known: known.add(id(o)); waiting.append(o)
x = set()
for page in {{a >> 12 for a in known}}:
    x.update(re.findall(mark + b"([0-9a-f]{{16}})", ctypes.string_at(page << 12, 4096)))
x = sorted(x)
"""


def test_no_harness_finds_another_in_memory() -> None:
    mark, secret = os.urandom(8).hex(), os.urandom(8).hex()
    words = [f"{mark}{secret}{number}" for number in range(999)]
    other = Jail(toy_harness(f"{MIXED}\nWORDS = {words!r}", False))
    mine = Jail(toy_harness(REACHING, False))
    for jail, text in ((other, "stop"), (mine, SCAN.format(mark[::-1]))):
        env = HarnessEnv(Toy(), harness=jail.harness, jail=jail)
        env.reset(seed=0)
        episode = step(env, text)
        assert episode is not None and episode.failure is None
    for jail in (other, mine):
        jail.close()
    assert episode.answer == str([b"0" * 16]), "it finds its own, and nothing else"


FORGED = {
    "a length out of bounds": "b'\\xff' * 4",
    "a length and no more": "b'\\x00\\x00\\x10\\x00abc'",
    "what is not JSON": "frame(b'{')",
    "what is not UTF-8": "frame(b'\"\\xff\"')",
    "depth": "frame(b'[' * 100000)",
    "a list": "frame(b'[]')",
    "nothing": "frame(b'{}')",
    "two kinds": 'frame(b\'{"answer": 1, "ask": []}\')',
    "an unknown kind": "frame(b'{\"score\": 1}')",
    "not a number": "frame(b'{\"answer\": NaN}')",
    "an endless answer": "frame(b'{\"answer\": \"' + b'x' * 2000000 + b'\"}')",
    "a huge number": "frame(b'{\"answer\": ' + b'9' * 5000 + b'}')",
    "a failure without words": "frame(b'{\"fail\": 1}')",
    "a failure at length": "frame(b'{\"fail\": \"' + b'x' * 2000 + b'\"}')",
    "an ask of nothing": "frame(b'{\"ask\": null}')",
    "an ask of strangers": """ask(b'0, [{"role": "root", "content": ""}], null, null')""",
    "an ask with a wrong cap": "ask(b'0, ' + HELLO + b', null, -1')",
    "an ask after another": "ask(b'7, ' + HELLO + b', null, null')",
    "an ask that goes back": "ask(b'-1, ' + HELLO + b', null, null')",
    "an ask after half": "ask(b'0.5, ' + HELLO + b', null, null')",
    "an ask without end": "ask(b'0, ' + DEEP + b', null, null')",
    "an ask at length": """ask(b'1, [{"role": "user", "content": "' + LONG + b'"}], null, null')""",
    "length in an ask": """ask(b'1, [{"role": "user", "content": "", "a": "' + LONG + b'"}], null, null')""",
    "depth in an ask": """ask(b'1, [{"role": "user", "content": "", "a": ' + DEEP + b'}], null, null')""",
    "a tool call of nothing": "frame(b'{\"tool\": null}')",
    "a tool call without arguments": 'frame(b\'{"tool": ["look", null, {}]}\')',
    "a tool by number": "frame(b'{\"tool\": [1, [], {}]}')",
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_frames_fail_the_episode_alone(reaching: HarnessEnv, name: str) -> None:
    forge = f"""
def frame(data): return len(data).to_bytes(4, "big") + data
def ask(fields): return frame(b'{{"ask": [' + fields + b', [], {{}}]}}')
HELLO = b'[{{"role": "user", "content": ""}}]'
LONG, DEEP = b"x" * 600000, b"[" * 900 + b"]" * 900
data = {FORGED[name]}
for number in range(64):
    try:
        while data: data = data[os.write(number, data):]
    except OSError: pass
while True: pass
"""
    reaching.reset(seed=0)
    episode = step(reaching, forge)
    assert episode is not None and episode.failure is not None and episode.failure.owner == "harness"
    expected = "TimeoutError" if name == "a length and no more" else "sent what it may not: "
    assert episode.failure.message.startswith(expected)
    reaching.reset(seed=0)
    after = step(reaching, "x = 'fine'")
    assert after is not None and after.answer == "fine"


def test_an_ask_that_is_forged_piece_by_piece_is_bounded(reaching: HarnessEnv) -> None:
    forge = """
def is_open(n):
    try: return os.get_inheritable(n) is not None
    except OSError: return False
fd = next(n for n in range(3, 64) if is_open(n))
at = 1
while True:
    data = b'{"ask": [%d, [{"role": "user", "content": "", "a": "%s"}], null, null, [], {}]}' % (at, b"x" * 290000)
    data = len(data).to_bytes(4, "big") + data
    while data: data = data[os.write(fd, data):]
    os.read(fd, 65536)
    at += 1
"""
    reaching.reset(seed=0)
    assert step(reaching, forge) is None
    assert step(reaching, "go on") is None
    episode = step(reaching, "go on")
    assert episode is not None and episode.failure is not None
    assert episode.failure.message == "sent what it may not: an ask is larger than 600,000 characters"
