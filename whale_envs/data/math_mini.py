"""The mini world of math: word problems and arithmetic in one to three steps, generated from a seed.

A problem is a start clause, up to two change clauses and a question. Each clause names what it does to the running
value, so the program that solves a problem is one line a clause. The sequence of clauses is the problem's *family*.
Most families are shared by everybody; some are held out, each for one split, so that a model that is trained on the
weight split meets sequences in the test split that it has never seen. Numbers have at most four digits in a problem,
answers as many as they need: nothing here is solved without computing.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from operator import add, floordiv, mod, mul, sub

from whale_envs.data.math_files import content_key, task_id
from whale_envs.task import SPLITS, Splits, Task, TaskSet

SEED = 20260900
SIZES = {"weight": 1024, "harness": 384, "test": 256}
#: Of families with two steps or more, the share that everybody may use; the rest is held out, a third for each split.
SHARED = 0.7
#: Of a split's tasks, the share that comes from its own held-out families.
OWN = 0.5
#: How many problems have one, two and three steps.
STEPS = (25, 45, 30)
#: The longest value on the way.
MAX_DIGITS = 9

NAMES = (
    "Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivan", "Jade", "Kai", "Lena", "Milo", "Nora", "Omar",
    "Pia", "Quin", "Rosa", "Sam", "Tess", "Uma", "Vera", "Will", "Zoe",
)  # fmt: skip
OBJECTS = (
    "apples", "beads", "books", "cards", "coins", "cups", "eggs", "flags", "keys", "lamps", "mugs", "nails", "nuts",
    "pens", "pins", "plums", "rings", "shells", "stamps", "toys",
)  # fmt: skip

Pick = Callable[[random.Random], tuple[int, ...]]


@dataclass(frozen=True)
class Clause:
    """One sentence of a problem and its line of code.

    `{a}`, `{b}` are its numbers, which `pick` draws, `{n}`, `{m}` two names, `{o}` objects. `value` takes the numbers,
    after the running value unless the clause is a start. A clause with a `question` of its own, in place of the
    problem's, comes last.
    """

    name: str
    text: str
    code: str
    value: Callable[..., int]
    pick: Pick
    question: str = ""

    @property
    def imports(self) -> str:
        """The name that its code needs from `math`, if any."""
        return self.name if self.name in ("gcd", "lcm") else ""


def _ints(*ranges: tuple[int, int]) -> Pick:
    return lambda rng: tuple(rng.randint(low, high) for low, high in ranges)


def _falling(rng: random.Random) -> tuple[int, ...]:
    high = rng.randint(300, 9999)
    return high, rng.randint(11, high - 100)


def _rising(low: int, high: int) -> Pick:
    def pick(rng: random.Random) -> tuple[int, ...]:
        first = rng.randint(low, high)
        return first, rng.randint(first + 10, high + 100)

    return pick


def _even_shares(rng: random.Random) -> tuple[int, ...]:
    friends = rng.randint(3, 12)
    return (friends + 1) * rng.randint(101, 700), friends


def _sum_range(first: int, last: int) -> int:
    return sum(range(first, last + 1))


def _common(rng: random.Random) -> tuple[int, ...]:
    factor = rng.randint(3, 40)
    return factor * rng.randint(3, 60), factor * rng.randint(3, 60)


STORY_STARTS = (
    Clause("boxes", "{n} has {a} boxes of {b} {o}.", "x={a}*{b}", mul, _ints((21, 199), (21, 199))),
    Clause(
        "both",
        "{n} has {a} {o} and {m} has {b}; they put them together.",
        "x={a}+{b}",
        add,
        _ints((101, 9999), (101, 9999)),
    ),
    Clause("sold", "{n} had {a} {o} and sold {b} of them.", "x={a}-{b}", sub, _falling),
    Clause("daily", "{n} makes {a} {o} a day for {b} days.", "x={a}*{b}", mul, _ints((41, 600), (14, 90))),
    Clause(
        "rows",
        "{n} lays {a} {o} in the first row, one more in each next row, and {b} in the last.",
        "x=sum(range({a},{b}+1))",
        _sum_range,
        _rising(2, 190),
    ),
    Clause(
        "shared",
        "{n} shares {a} {o} evenly with {b} friends and keeps one share.",
        "x={a}//({b}+1)",
        lambda a, b: a // (b + 1),
        _even_shares,
    ),
)
STORY_CHANGES = (
    Clause("brings", "{m} brings {a} more.", "x+={a}", add, _ints((11, 999))),
    Clause("finds", "Then {n} finds {a} under the bed.", "x+={a}", add, _ints((5, 99))),
    Clause("breaks", "Then {a} of them break.", "x-={a}", sub, _ints((3, 60))),
    Clause("gives", "{n} gives {a} of them to {m}.", "x-={a}", sub, _ints((3, 60))),
    Clause("doubles", "Their number doubles.", "x*=2", lambda x: x * 2, _ints()),
    Clause("triples", "Their number triples.", "x*=3", lambda x: x * 3, _ints()),
    Clause("half", "A fire takes half of them, rounded up.", "x//=2", lambda x: x // 2, _ints()),
    Clause("price", "Each is sold for {a} cents.", "x*={a}", mul, _ints((12, 99)), "How many cents is that?"),
    Clause("bags", "They are packed in bags of {a}.", "x//={a}", floordiv, _ints((3, 25)), "How many bags are full?"),
    Clause("left", "They are packed in bags of {a}.", "x%={a}", mod, _ints((7, 60)), "How many are left over?"),
)
NUMBER_STARTS = (
    Clause("product", "Multiply {a} by {b}.", "x={a}*{b}", mul, _ints((21, 999), (21, 999))),
    Clause("gcd", "Take the greatest common divisor of {a} and {b}.", "x=gcd({a},{b})", math.gcd, _common),
    Clause(
        "lcm", "Take the least common multiple of {a} and {b}.", "x=lcm({a},{b})", math.lcm, _ints((12, 99), (12, 99))
    ),
    Clause("range", "Add up all integers from {a} to {b}.", "x=sum(range({a},{b}+1))", _sum_range, _rising(11, 250)),
    Clause("power", "Raise {a} to the power {b}.", "x={a}**{b}", pow, _ints((3, 21), (2, 5))),
    Clause(
        "digits",
        "Multiply {a} by {b} and add up the digits of the product.",
        "x=sum(map(int,str({a}*{b})))",
        lambda a, b: sum(map(int, str(a * b))),
        _ints((101, 999), (101, 999)),
    ),
    Clause(
        "multiples",
        "Count the positive multiples of {a} up to {b}.",
        "x={b}//{a}",
        lambda a, b: b // a,
        _ints((3, 19), (200, 9999)),
    ),
    Clause("binary", "Count the ones of {a} in binary.", "x=bin({a}).count('1')", int.bit_count, _ints((33, 9999))),
)
NUMBER_CHANGES = (
    Clause("add", "Add {a}.", "x+={a}", add, _ints((11, 9999))),
    Clause("subtract", "Subtract {a}.", "x-={a}", sub, _ints((11, 999))),
    Clause("times", "Multiply the result by {a}.", "x*={a}", mul, _ints((3, 99))),
    Clause("divide", "Divide the result by {a}, dropping the rest.", "x//={a}", floordiv, _ints((3, 40))),
    Clause("mod", "Take the remainder by {a}.", "x%={a}", mod, _ints((7, 997))),
    Clause("square", "Square the result.", "x**=2", lambda x: x * x, _ints()),
)
#: (starts, changes, question): stories and plain arithmetic.
GRAMMARS = (
    (STORY_STARTS, STORY_CHANGES, "How many {o} are there now?"),
    (NUMBER_STARTS, NUMBER_CHANGES, "What is the result?"),
)


@dataclass(frozen=True)
class Problem:
    """A problem, the program that solves it (`imports` and `lines`, then `print(x)`), and its answer."""

    question: str
    clauses: tuple[Clause, ...]
    lines: tuple[str, ...]
    answer: int

    @property
    def family(self) -> str:
        """The sequence of its clauses."""
        return family_name(self.clauses)

    @property
    def imports(self) -> tuple[str, ...]:
        """The names that its program needs from `math`."""
        return tuple(c.imports for c in self.clauses if c.imports)

    @property
    def program(self) -> str:
        """The whole program."""
        return "\n".join([*(f"from math import {name}" for name in self.imports), *self.lines, "print(x)"])


@functools.cache
def families(whose: str, steps: int) -> tuple[tuple[int, tuple[Clause, ...]], ...]:
    """All (grammar, clauses) of so many steps that belong to `whose`."""
    found = []
    for grammar, (starts, changes, _) in enumerate(GRAMMARS):
        for clauses in itertools.product(starts, *[changes] * (steps - 1)):
            ends_early = any(c.question for c in clauses[:-1])
            if not ends_early and len(set(clauses)) == steps and owner(clauses) == whose:
                found.append((grammar, clauses))
    return tuple(found)


def owner(clauses: tuple[Clause, ...]) -> str:
    """Who may use a family: "shared", or the one split that it is held out for."""
    if len(clauses) == 1:
        return "shared"
    draw = int.from_bytes(hashlib.sha256(family_name(clauses).encode()).digest()[:4], "big") / 2**32
    return "shared" if draw < SHARED else SPLITS[int((draw - SHARED) / (1 - SHARED) * len(SPLITS))]


def family_name(clauses: tuple[Clause, ...]) -> str:
    """A family's name: its clauses' names in order."""
    return "/".join(c.name for c in clauses)


def generate(rng: random.Random, whose: str) -> Problem:
    """A problem of a family that belongs to `whose` ("shared" or a split); a value is never below 0 on the way."""
    while True:
        pool = families(whose, rng.choices((1, 2, 3), STEPS)[0])
        if not pool:
            continue
        grammar, clauses = rng.choice(pool)
        problem = _write(rng, clauses, GRAMMARS[grammar][2])
        if problem is not None:
            return problem


def _write(rng: random.Random, clauses: tuple[Clause, ...], question: str) -> Problem | None:
    """A problem of this family with random names and numbers; None when a value falls below 0 or grows too long."""
    name, other = rng.sample(NAMES, 2)
    objects = rng.choice(OBJECTS)
    x, text, lines = 0, [], []
    for step, clause in enumerate(clauses):
        numbers = clause.pick(rng)
        slots = dict(zip("ab", numbers, strict=False), n=name, m=other, o=objects)
        x = clause.value(x, *numbers) if step else clause.value(*numbers)
        if not 0 <= x < 10**MAX_DIGITS:
            return None
        text.append(clause.text.format(**slots))
        lines.append(clause.code.format(**slots))
    text.append((clauses[-1].question or question).format(o=objects))
    return Problem(" ".join(text), clauses, tuple(lines), x)


@functools.cache
def mini_splits() -> Splits:
    """The shipped task sets, the same on every machine: 1,024 / 384 / 256 tasks, disjoint by content."""
    sets = {s: TaskSet([_task(p, s) for p in problems], f"mini math ({s})") for s, problems in mini_problems().items()}
    return Splits(sets["weight"], sets["harness"], sets["test"])


def mini_problems() -> dict[str, list[Problem]]:
    """The problems behind the shipped tasks, split by split in the same order."""
    seen: set[str] = set()
    found: dict[str, list[Problem]] = {}
    for split in SPLITS:
        rng = random.Random(f"{SEED}/{split}")
        found[split] = []
        while len(found[split]) < SIZES[split]:
            problem = generate(rng, split if rng.random() < OWN else "shared")
            key = content_key(problem.question)
            if key not in seen:
                seen.add(key)
                found[split].append(problem)
    return found


def _task(problem: Problem, split: str) -> Task:
    whose = "held-out" if owner(problem.clauses) == split else "shared"
    name = task_id(content_key(problem.question))
    return Task(name, {"question": problem.question}, str(problem.answer), f"mini/{whose}/{problem.family}")
