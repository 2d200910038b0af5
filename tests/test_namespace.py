"""What a harness imports is the same in every episode that has the same seed."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_domain import Toy, toy_harness

from whale_envs import HarnessEnv
from whale_envs.contract import play
from whale_envs.harness.helpers import tag
from whale_envs.harness.namespace import seeded_random


@given(st.integers(0, 2**48))
def test_random_is_the_standard_one_seeded(seed: int) -> None:
    own: Any = seeded_random(seed)
    known = random.Random(seed)
    for _ in range(3):
        assert own.random() == known.random()
        assert own.sample(range(99), 5) == known.sample(range(99), 5)
        assert own.gauss(0, 1) == known.gauss(0, 1)
    assert own.Random(7).random() == random.Random(7).random()


def test_random_never_asks_the_system() -> None:
    draws = []
    for _ in range(2):
        own: Any = seeded_random(3)
        draws.append([own.Random().random(), own.Random().random()])
        own.seed()
        draws[-1] += [own.random(), own.Random(None).random()]
        assert not hasattr(own, "SystemRandom")
    assert draws[0] == draws[1] and len(set(draws[0])) == 4


def test_random_is_no_episodes_but_its_own() -> None:
    one: Any = seeded_random(1)
    other: Any = seeded_random(1)
    state = random.getstate()
    one.seed(5)
    one.note = "note"
    one.Random.note = "note"
    assert other.random() == random.Random(1).random()
    assert not hasattr(other, "note") and not hasattr(other.Random, "note") and not hasattr(random.Random, "note")
    assert random.getstate() == state


MODULES = """
import re, json, math, random, statistics, collections, collections.abc, itertools, functools, string, textwrap, difflib
import unicodedata, dataclasses, typing, html
"""
USED = [
    "re.sub(r'(?i)[A-Z]+|\\N{DIGIT ONE}', '_', 'Ab1')",
    "json.loads(json.dumps({'a': [1, 2.5, None, 'é']}, indent=1, sort_keys=True))",
    "math.isclose(math.pi, 3.14159, rel_tol=1e-4), math.comb(5, 2)",
    "[random.choice('abc'), random.Random(3).random(), random.Random().random(), random.shuffle([1, 2])]",
    "statistics.quantiles([1, 2, 3, 4]), statistics.NormalDist(0, 1).cdf(0.5), str(statistics.mode('aab'))",
    "collections.Counter('abcab').most_common(1), list(collections.deque([1, 2], 1))",
    "collections.namedtuple('P', 'x')(1), collections.OrderedDict(a=1)",
    "isinstance({}, collections.abc.Mapping)",
    "[list(g) for _, g in itertools.groupby('aab')], list(itertools.islice(itertools.count(), 2))",
    "functools.reduce(int.__add__, [1, 2]), functools.cache(len)('ab'), functools.singledispatch(lambda v: 1)('a')",
    "string.capwords('a b'), string.Template('$x').substitute(x=1), string.Formatter().format('{0}', 1)",
    "textwrap.dedent('  a'), textwrap.shorten('hello world', 8), textwrap.fill('a b', 1)",
    "difflib.get_close_matches('appel', ['apple']), list(difflib.ndiff(['a'], ['b']))",
    "unicodedata.normalize('NFKD', 'é'), unicodedata.name('é')",
    "dataclasses.asdict(dataclasses.make_dataclass('D', ['x'])(1)), repr(dataclasses.make_dataclass('D', ['x'])(1))",
    "str(typing.Optional[int]), typing.NamedTuple('N', [('x', int)])(1), str(typing.get_type_hints(run))",
    "html.unescape('&eacute;'), html.escape('<')",
    "['é'.encode(c) for c in ('utf-8', 'latin-1', 'cp1252', 'utf-16', 'idna', 'unicode_escape')]",
]


@pytest.mark.parametrize("used", USED)
def test_allowed_modules_work_alike_in_both_forms(used: str) -> None:
    source = f"{MODULES}\ndef run(task, tools):\n    yield [{{'role': 'user', 'content': repr(({used},))}}]\n"
    shown = []
    for trusted in (True, False):
        env = HarnessEnv(Toy(), harness=toy_harness(source, trusted))
        episode = play(env, 5, iter(["a"]))
        env.close()
        assert episode.failure is None, episode.failure
        shown.append(episode.calls[0].messages)
    assert shown[0] == shown[1]


PIECES = st.lists(st.sampled_from(["<a>", "</a>", "x", " ", "\n", "<", "a>", "</", "<b>", "</b>", "/"]), max_size=12)


@settings(max_examples=300)
@given(PIECES.map("".join), st.sampled_from(["a", "b", "c", "/a"]))
def test_a_tag_is_what_the_regular_expression_says(text: str, name: str) -> None:
    opening, closing = f"<{re.escape(name)}>", f"</{re.escape(name)}>"
    found = re.findall(rf"{opening}((?:(?!{opening}).)*?){closing}", text, re.DOTALL)
    assert tag(text, name) == (found[-1].strip() if found else None)
