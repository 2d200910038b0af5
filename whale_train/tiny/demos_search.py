"""Demonstrations for the SearchQA model: a scripted expert plays invented worlds through real harness code.

The expert acts on what it has been shown, nothing else. Its worlds have seeds of their own, so no fact of the
bundled world is among them; harness settings and wordings vary, so that the model meets many harnesses.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

from whale_envs import Harness, HarnessEnv
from whale_envs.data.search_world import RELATIONS, SearchWorld, lexicon
from whale_envs.domains.search_qa import SearchQA
from whale_envs.harness.helpers import Message

#: Strings that are to be single tokens.
TOKENS = [
    *(f" {word}" for word in lexicon()),
    *(f" {relation}" for kind in RELATIONS.values() for relation in kind),
    *(" <search>", "</search>", " <answer>", "</answer>"),
]
#: Questions taken from one world before the next is made.
PER_WORLD = 400
#: Share of demonstrations with mistakes in the noisy part, and of each mistake a turn (or second hop) there.
NOISY, NO_FORMAT, NO_LOOK, BAD_QUERY, WRONG_VALUE, SKIPPED_HOP = 0.7, 0.08, 0.06, 0.2, 0.12, 0.3
#: Share of first queries that name the relation.
NAMES_RELATION = 0.3

SYSTEMS = [
    "Answer factual questions. Search when you need to.",
    "You answer questions by searching.",
    "Search before you answer. Read the results with care.",
    "Answer the question. Use <search>...</search> to look things up.",
    "You are a careful research assistant.",
    "",
]
REMINDERS = [
    "Write <search>...</search> to search or <answer>...</answer> to answer.",
    "Use the format: <search>query</search> or <answer>answer</answer>.",
    "No tag was found. Please answer in <answer>...</answer>.",
    "That was not in the right format. Try again.",
    "Reply with a tag.",
]
HARNESS = """
from whale_envs.harness import system, tag, tool, user

def run(task, tools):
    messages = [{system}user(f"Question: {{task.question}}\\nAnswer in <answer>...</answer>.")]
    for turn in range({turns}):
        reply = yield messages
        if answer := tag(reply.text, "answer"):
            return answer
        query = tag(reply.text, "search")
        if not query:
            {missing}
        found = tools.search(query, k={passages})
        messages += [reply.message, tool("\\n".join({shown} for p in found))]
"""


def _harness(draw: random.Random) -> Harness:
    said = draw.choice(SYSTEMS)
    shown = draw.choice(
        [f"p.head({draw.choice([15, 20, 20, 25, 30, 60])})", f"p.snippets(query, {draw.choice([1, 2, 2, 3])})"]
    )
    reminder = f"messages += [reply.message, user({draw.choice(REMINDERS)!r})]; continue"
    source = HARNESS.format(
        system=f"system({said!r}), " if said else "",
        turns=draw.randint(3, 6),
        passages=draw.choice([1, 1, 2, 2, 3]),
        shown=shown,
        missing=draw.choice(["return None", reminder]),
    )
    return Harness(source, "demonstration", trusted=True)


class Expert:
    """Answers from visible sentences, searches for what is missing; makes mistakes when `noise`."""

    def __init__(self, question: str, names: list[str], draw: random.Random, noise: bool) -> None:
        body, _, self.entity = question.removeprefix("What is the ").rstrip("?").rpartition(" of ")
        self.path = list(reversed(body.split(" of the ")))
        self.draw, self.names, self.noise = draw, names, noise
        self.name_relation = draw.random() < NAMES_RELATION
        self.searched: set[str] = set()
        self.skips = noise and len(self.path) == 2 and draw.random() < SKIPPED_HOP

    def __call__(self, messages: tuple[Message, ...]) -> str:
        """The next reply."""
        facts = [f for m in messages if m["role"] == "tool" for f in _facts(m["content"])]
        known = {(owner, relation): value for owner, relation, value in facts}
        if self._slips(NO_LOOK) and not facts:
            return self._format("answer", self.draw.choice(self.names))
        entity, quote = self.entity, ""
        for hop, relation in enumerate(self.path):
            value = known.get((entity, relation))
            if value is None:
                return self._search(entity, relation, quote)
            if self._slips(WRONG_VALUE):
                value = self.draw.choice(facts)[2]
            quote, entity = f" {relation} is {value}", value
            if hop == 0 and self.skips:
                break
        return quote + self._format("answer", entity)

    def _search(self, entity: str, relation: str, quote: str) -> str:
        full = f"{entity} {relation}"
        if full in self.searched:
            return self._format("answer", "unknown")
        query = full if self.name_relation or entity in self.searched else entity
        self.searched.add(query)
        if self._slips(BAD_QUERY):
            query = self.draw.choice([self.draw.choice(self.names), entity.split()[0], relation])
        return quote + self._format("search", query)

    def _format(self, name: str, text: str) -> str:
        if self._slips(NO_FORMAT):
            return self.draw.choice([f" {text}", f" <{name}> {text}", f" {text}</{name}>"])
        return f" <{name}> {text}</{name}>"

    def _slips(self, share: float) -> bool:
        return self.noise and self.draw.random() < share


def _facts(shown: str) -> Iterator[tuple[str, str, str]]:
    """(entity, relation, value) of each fact in a result: an entity's title or opening comes before its facts."""
    owner = ""
    for line in shown.splitlines():
        if fact := re.fullmatch(r"(?:Its|Their) (\w+) is (.+)\.", line):
            yield owner, fact[1], fact[2]
        else:
            owner = line.partition(" is a ")[0]


def demos(seed: int, noise: bool) -> Iterator[list[Message]]:
    """Conversations without end, the same for the same arguments."""
    draw = random.Random(f"search demos {seed}")
    harnesses = [_harness(draw) for _ in range(40)]
    while True:
        world = SearchWorld(draw.randrange(10**6, 10**9))
        domain = SearchQA(world)
        names = list(world.entities)
        for task in list(domain.splits.weight)[:PER_WORLD]:
            env = HarnessEnv(domain, harness=draw.choice(harnesses))
            expert = Expert(task.shown["question"], names, draw, noise and draw.random() < NOISY)
            messages, _ = env.reset(seed=0, options={"task": task.id})
            over = False
            while not over:
                said = expert(messages)
                conversation = [*messages, {"role": "assistant", "content": said}]
                messages, _, ended, cut, _ = env.step(said)
                over = ended or cut
            yield conversation
