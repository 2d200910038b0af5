"""What a harness may do, sensible and not: the body of `run`, or a whole file."""

# ruff: noqa: E501

from __future__ import annotations

ASK = "r = yield [user(task.question)]\n"

#: What a harness may do: the body of `run`, or a whole file.
ZOO = {
    "answers": ASK + "return r.text",
    "draws": ASK + "return [random.random(), random.choice('abc'), random.sample(range(99), 5), random.gauss(0, 1)]",
    "draws from a distribution": "import statistics\n" + ASK + "d = statistics.NormalDist(0, 1)\nreturn [d.samples(2), (d + d).samples(2), random.random(), d.samples(1, seed=5)]",
    "fails in statistics": "import statistics\n" + ASK + "try:\n    statistics.NormalDist(0, -1)\nexcept statistics.StatisticsError as error:\n    return str(error)",
    "draws at import": "import random\nX = random.random()\ndef run(task, tools):\n    yield [{'role': 'user', 'content': str(X)}]",
    "prints": "print('x', 1, sep='-')\nprint('\\ud800', end='')\nprint(file=None, flush=True)\n" + ASK + "return 1",
    "raises": ASK + "raise ValueError('no: ' + r.text)",
    "raises at once": "raise KeyError('x')\nyield",
    "raises at import": "1 / 0\ndef run(task, tools):\n    yield []",
    "raises a surrogate": ASK + "raise ValueError('\\ud800')",
    "raises an object": ASK + "raise ValueError(object(), lambda: 0)",
    "raises nothing to say": ASK + "raise AssertionError",
    "raises at length": ASK + "raise ValueError('x' * 10_000_000)",
    "raises what cannot print": ASK + "class E(Exception):\n    def __str__(self):\n        raise E\nraise E",
    "raises an exit": ASK + "raise SystemExit(3)",
    "raises a generator's exit": ASK + "raise GeneratorExit",
    "raises a stop": ASK + "raise StopIteration(5)",
    "raises a base": ASK + "class B(BaseException): pass\nraise B('b')",
    "raises a group": ASK + "raise ExceptionGroup('g', [ValueError(1)])",
    "fails to import": "import os\n" + ASK,
    "imports a package": "import whale_envs\n" + ASK,
    "imports a stranger": "from whale_envs.harness import jail\n" + ASK,
    "imports in a string": "exec('import socket')\n" + ASK,
    "imports relatively": "from . import helpers\ndef run(task, tools):\n    yield []",
    "forgives an import": "try:\n    import numpy\nexcept ImportError as error:\n    m = str(error)\n" + ASK + "return m",
    "imports a submodule": "import collections.abc, json, statistics\n" + ASK + "return statistics.mean([1, 2, 4])",
    "imports a decoder": "import json.tool\n" + ASK,
    "opens a file": "open('/etc/passwd')\n" + ASK,
    "asks the terminal": "input()\n" + ASK,
    "debugs": "breakpoint()\n" + ASK,
    "exits": "exit()\n" + ASK,
    "evaluates nonsense": ASK + "return eval('1 +')",
    "recurses": ASK + "f = lambda n: f(n + 1)\nreturn f(0)",
    "recurses at import": "def f(): return f()\nf()\ndef run(task, tools):\n    yield []",
    "recurses in repr": ASK + "class L:\n    def __repr__(self): return repr(self)\nreturn repr(L())",
    "answers a set": ASK + "return {1}",
    "answers an object": ASK + "return object()",
    "answers bytes": ASK + "return b'x'",
    "answers nan": ASK + "return [float('nan')]",
    "answers infinity": ASK + "return {'a': float('-inf')}",
    "answers a tuple": ASK + "return (1, (2.5, None), True)",
    "answers a big int": ASK + "return 7 ** 500",
    "answers a huge int": ASK + "return 10 ** 4999",
    "answers int keys": ASK + "return {1: 2}",
    "answers surrogates": ASK + "return {'\\ud83d': ['\\ude00', '\\ud83d\\ude00', 'ok']}",
    "answers at length": ASK + "return 'x' * 700_000",
    "answers many": ASK + "return [0] * 700_000",
    "answers a loop": ASK + "a = []\na.append(a)\nreturn a",
    "answers depth": ASK + "a = 1\nfor _ in range(64): a = [a]\nreturn a",
    "answers too deep": ASK + "a = 1\nfor _ in range(65): a = [a]\nreturn a",
    "answers a passage": ASK + "return tools.look('x')[0]",
    "answers a str of its own": ASK + "class S(str): pass\nreturn S('s')",
    "answers an int of its own": ASK + "import typing\nclass I(int): pass\nreturn [I(5), True]",
    "answers control characters": ASK + "return '\\x00\\x1b\\u2028' * 100_000",
    "answers at once": "return 5\nyield",
    "answers nothing": ASK,
    "yields nothing": "yield",
    "yields no messages": "yield []",
    "yields a number": "yield 5",
    "yields a string": "yield 'hello'",
    "yields a tuple": "yield (user('a'),)",
    "yields a generator": "yield (m for m in [user('a')])",
    "yields an object": "yield [object()]",
    "yields no role": "yield [{'content': 'x'}]",
    "yields a strange role": "yield [{'role': 'god', 'content': 'x'}]",
    "yields an unhashable role": "yield [{'role': ['user'], 'content': 'x'}]",
    "yields no text": "yield [{'role': 'user', 'content': None}]",
    "yields surrogates": "yield [user('\\udfff'), {'role': 'user', 'content': 'x', '\\ud800': '\\ud800'}]",
    "yields at length": "yield [user('x' * 700_000)]",
    "yields a set inside": "yield [{'role': 'user', 'content': 'x', 'more': {1}}]",
    "yields an Ask": "yield Ask([user('a')], tools=[{'name': 'f', 'p': (1,)}], max_tokens=5, stop=('\\n',), template_kwargs={'a': 1})",
    "yields an Ask with a list of stops": "yield Ask([user('a')], stop=['a'])",
    "yields a stop string": "yield Ask([user('a')], stop='a')",
    "yields no cap": "yield Ask([user('a')], max_tokens=0)",
    "yields True for a cap": "yield Ask([user('a')], max_tokens=True)",
    "yields half a cap": "yield Ask([user('a')], max_tokens=1.5)",
    "yields strange tools": "yield Ask([user('a')], tools={'a': 1})",
    "yields strange template arguments": "yield Ask([user('a')], template_kwargs=[lambda: 0])",
    "yields an Ask of nothing": "yield Ask(None)",
    "yields for ever": "while True:\n    yield [user('again')]",
    "yields from": "def inner():\n    r = yield [user('a')]\n    return r.text\nreturn (yield from inner())",
    "changes what it yielded": "m = [user('a')]\nr = yield m\nm[0]['content'] = 'b'\nm.append(r.message)\nyield m\nm.clear()",
    "changes its task": "task.hints.append('mine')\ntask.question = 'mine'\n" + ASK + "return task.hints",
    "changes a result": "f = tools.double([1])\nf[0].append(2)\nf.append(3)\n" + ASK + "return f",
    "changes the helpers": "import whale_envs.harness as h\n" + ASK,
    "reads every result": "b = tools.board()\nc, d = tools.code('x')\n" + ASK + "return [b.legal[1][0], type(b.legal).__name__, c.status, d, repr(b)]",
    "reads a passage": "p = tools.look('w', k=2)\n" + ASK + "return [repr(p), p[0].head(2), p[1].snippets('look', 1)]",
    "calls what is not there": "tools.nothing(1)\n" + ASK,
    "calls by a private name": "tools._call('look', ['x'], {})\n" + ASK,
    "calls with too much": "tools.look(1, 2, 3, 4)\n" + ASK,
    "calls with a stranger": "tools.look('a', colour='red')\n" + ASK,
    "calls with an object": "tools.look(object())\n" + ASK,
    "calls with a wrong type": "tools.look(5)\n" + ASK,
    "calls with surrogates": "p = tools.double('\\ud800')\n" + ASK + "return p",
    "calls with int keys": "tools.double({1: 2})\n" + ASK,
    "forgives a misuse": "try:\n    tools.look(None)\nexcept ValueError as error:\n    m = [type(error).__name__, str(error)]\n" + ASK + "return m",
    "knows a misuse by name": "try:\n    tools.nothing()\nexcept ToolUseError as error:\n    m = str(error)\n" + ASK + "return m",
    "calls for ever": "while True:\n    tools.look('x')\n" + ASK,
    "calls often": "for _ in range(64):\n    tools.look('x')\n" + ASK + "for _ in range(64):\n    tools.look('x')\nreturn 1",
    "misuses too often": "for _ in range(65):\n    try:\n        tools.look(None)\n    except ValueError: pass\n" + ASK + "return 1",
    "breaks a tool": "tools.down()\n" + ASK,
    "forgives a broken tool": "try:\n    tools.down()\nexcept Exception: pass\ntry:\n    tools.look('x')\nexcept Exception: pass\n" + ASK,
    "gets too much from a tool": "tools.huge()\n" + ASK,
    "gets what is not JSON from a tool": "tools.odd()\n" + ASK,
    "ends the world": "tools.stop()\n" + ASK + "return 'too late'",
    "ends the world and answers": ASK + "tools.stop()\nreturn 'answer'",
    "calls when closed": "try:\n    while True:\n        yield [user('a')]\nfinally:\n    tools.look('late')",
    "yields when closed": "while True:\n    try:\n        yield [user('a')]\n    except GeneratorExit:\n        pass",
    "raises when closed": "try:\n    while True:\n        yield [user('a')]\nfinally:\n    1 / 0",
    "is decorated": "def d(f):\n    return lambda *a: f(*a)\n@d\ndef run(task, tools):\n    yield [{'role': 'user', 'content': 'a'}]\n    return 1",
    "has a dataclass": "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\ndef run(task, tools):\n    yield [{'role': 'user', 'content': repr(A(1))}]\n    return __name__",
    "escapes badly": "PATTERN = '\\d'\nimport re\ndef run(task, tools):\n    r = yield [{'role': 'user', 'content': 'a'}]\n    return re.findall(PATTERN, r.text)",
    "shows an address": ASK + "return re.sub('x', 'y', lambda: 0)",
    "waits for nothing": "async def f(): pass\n" + ASK + "return f",
}  # fmt: skip

#: What differs between processes, so that it differs trusted and jailed: the audit refuses it.
UNORDERED = {
    "shows a set": "yield [user(' '.join({*'abcdefgh', task.question}))]\nreturn 'x'",
    "answers by a set": ASK + "return str(list({'a', 'b', 'c', 'd', r.text}))",
    "hashes": ASK + "return str(hash('x' + task.question))",
}

BODIES = {name: source for name, source in ZOO.items() if "def run" not in source}
FILES = {name: source for name, source in ZOO.items() if "def run" in source}


def in_one_file(bodies: dict[str, str]) -> str:
    """A harness that asks which of the bodies to run: one worker serves many tests."""
    lines = ["from whale_envs.harness import *", "import random, re"]
    for number, body in enumerate(bodies.values()):
        lines += [f"def f{number}(task, tools):", *("    " + line for line in body.splitlines())]
        lines += ["    if 0: yield"]
    lines += ["def run(task, tools):", "    case = yield [user('which?')]"]
    lines += [
        f"    return (yield from [{', '.join(f'f{n}' for n in range(len(bodies)))}][int(case.text)](task, tools))"
    ]
    return "\n".join(lines)
