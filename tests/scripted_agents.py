"""Agents without a model that play a domain, good and bad by chance, so that harnesses differ in what they score."""

from __future__ import annotations

import random
import re

from whale_train.policies.base import Request

_QUESTION = re.compile(r"What is the (.+)\?")
_FACT = re.compile(r"(?:Its|Their) (.+) is (.+)\.")


def facts(shown: str) -> dict[tuple[str, str], str]:
    """(entity, relation): value, from passages as harnesses show them: a title, then lines about it."""
    found: dict[tuple[str, str], str] = {}
    title = ""
    for line in shown.splitlines():
        fact = _FACT.fullmatch(line.strip())
        if fact:
            found[title, fact[1]] = fact[2]
        elif not line.endswith("."):
            title = line.strip()
    return found


def searcher(request: Request, bad_format: float = 0.3) -> str:
    """A SearchQA agent: looks up each hop, answers from the lines that it was shown, sometimes in no format at all.

    What it can answer depends on the harness alone: which lines are shown, how many turns there are, and whether a
    reply without a tag ends the episode. It writes one at random with the chance `bad_format`.
    """
    rng = random.Random(request.seed)
    if rng.random() < bad_format:
        return "I am not sure."
    shown = "\n".join(m["content"] for m in request.ask.messages if m["role"] != "assistant")
    found, known = _QUESTION.search(shown), facts(shown)
    if found is None:
        return "<search>something</search>"
    *relations, entity = found[1].split(" of ")
    for relation in reversed([r.removeprefix("the ") for r in relations]):
        if (entity, relation) not in known:
            return f"<search>{entity} {relation}</search>"
        entity = known[entity, relation]
    return f"<answer>{entity}</answer>"
