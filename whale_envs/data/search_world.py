"""The mini world of SearchQA: a knowledge base of invented people, towns and firms, and questions about it.

Everything is drawn from a seed: each world has its own facts, all worlds share one lexicon of names. One passage an
entity, one sentence a fact, in an order of its own. Questions take one hop ("What is the river of Doran Vale?") or
two ("What is the river of the birthplace of Mira Oakfield?").
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from whale_envs.harness.helpers import Passage
from whale_envs.task import Splits, Task, TaskSet

#: relation: kind of its value (an entity kind, or "thing" for a name that has no passage)
RELATIONS: dict[str, dict[str, str]] = {
    "person": {"birthplace": "town", "employer": "firm", "spouse": "person", "hobby": "thing", "teacher": "person"},
    "town": {"river": "thing", "mayor": "person", "dish": "thing", "founder": "person", "bank": "firm"},
    "firm": {"headquarters": "town", "chief": "person", "product": "thing", "rival": "firm", "motto": "thing"},
}
#: how many entities of each kind a world has
ENTITIES = {"person": 240, "town": 120, "firm": 120}
#: how many names of rivers, dishes, hobbies and the like
THINGS = 200
#: the share of questions that take two hops
TWO_HOPS = 0.3
SIZES = {"weight": 1024, "harness": 384, "test": 256}

_ONSETS = "b br c d dr f g gl h k l m n p r s st t tr v w z".split()
_MIDDLES = "a e i o u ar en il or".split()
_ENDS = "by dan fel gor lin mond nor rick ston ton val wick ber sa mir".split()


def lexicon() -> list[str]:
    """The 320 words that names are made of, the same in every world."""
    draw = random.Random("whale lexicon")
    found: set[str] = set()
    while len(found) < 320:
        found.add((draw.choice(_ONSETS) + draw.choice(_MIDDLES) + draw.choice(_ENDS)).capitalize())
    return sorted(found)


@dataclass(frozen=True)
class Entity:
    """An entity: its kind, name, and facts as (relation, value)."""

    kind: str
    name: str
    facts: tuple[tuple[str, str], ...]

    def passage(self) -> Passage:
        """Its passage: what it is, then one sentence a fact."""
        whose = "Their" if self.kind == "person" else "Its"
        sentences = [
            f"{self.name} is a {self.kind}.",
            *(f"{whose} {relation} is {value}." for relation, value in self.facts),
        ]
        return Passage(self.name.lower().replace(" ", "-"), self.name, "\n".join(sentences))


@dataclass(frozen=True)
class Question:
    """A question: the entity it starts from and the relations to follow, first hop first."""

    entity: str
    path: tuple[str, ...]
    answer: str

    @property
    def text(self) -> str:
        """The question as it is asked."""
        return f"What is {' of '.join(f'the {r}' for r in reversed(self.path))} of {self.entity}?"


class SearchWorld:
    """A knowledge base drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(f"search world {seed}")
        words = lexicon()
        pairs: dict[frozenset[str], str] = {}  # the same words in another order are the same to BM25
        while len(pairs) < sum(ENTITIES.values()) + THINGS:
            pair = self._draw.sample(words, 2)
            pairs.setdefault(frozenset(pair), " ".join(pair))
        names = list(pairs.values())
        self._things = [names.pop() for _ in range(THINGS)]
        self._names: dict[str, list[str]] = {}
        for kind, count in ENTITIES.items():
            self._names[kind], names = names[:count], names[count:]
        self.entities = {name: self._entity(kind, name) for kind, group in self._names.items() for name in group}

    def _entity(self, kind: str, name: str) -> Entity:
        facts = [(relation, self._value(of, name)) for relation, of in RELATIONS[kind].items()]
        self._draw.shuffle(facts)
        return Entity(kind, name, tuple(facts))

    def _value(self, kind: str, owner: str) -> str:
        choices = self._things if kind == "thing" else self._names[kind]
        while (value := self._draw.choice(choices)) == owner:
            pass
        return value

    def passages(self) -> list[Passage]:
        """One passage an entity."""
        return [e.passage() for e in self.entities.values()]

    def question(self) -> Question:
        """A random question; which are drawn depends on the world's seed and on how many were drawn before."""
        entity = self.entities[self._draw.choice(list(self.entities))]
        hops = 2 if self._draw.random() < TWO_HOPS else 1
        facts = [f for f in entity.facts if hops == 1 or f[1] in self.entities]
        relation, value = self._draw.choice(facts)
        if hops == 1:
            return Question(entity.name, (relation,), value)
        second, answer = self._draw.choice(self.entities[value].facts)
        return Question(entity.name, (relation, second), answer)

    def splits(self) -> Splits:
        """D_weight, D_harness and test: different questions, each once."""
        seen: dict[str, Question] = {}
        while len(seen) < sum(SIZES.values()):
            question = self.question()
            seen.setdefault(question.text, question)
        rows = [
            Task(f"mini-{i}", {"question": q.text}, [q.answer], source=f"{len(q.path)}-hop")
            for i, q in enumerate(seen.values())
        ]
        first, last = SIZES["weight"], SIZES["weight"] + SIZES["harness"]
        return Splits(
            weight=TaskSet(rows[:first], "search-qa mini world, weight"),
            harness=TaskSet(rows[first:last], "search-qa mini world, harness"),
            test=TaskSet(rows[last:], "search-qa mini world, test"),
        )
