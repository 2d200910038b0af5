"""Agents without a model that play a domain, good and bad by chance, so that harnesses differ in what they score."""

from __future__ import annotations

import random
import re

from whale_train.policies.base import Request

_QUESTION = re.compile(r"What is the (.+)\?")


def searcher(request: Request, bad_format: float = 0.3) -> str:
    """A SearchQA agent: looks up each hop, answers from the lines that it was shown, sometimes in no format at all.

    What it can answer depends on the harness alone: which lines are shown, how many turns there are, and whether a
    reply without a tag ends the episode. It writes one at random with the chance `bad_format`.
    """
    rng = random.Random(request.seed)
    if rng.random() < bad_format:
        return "I am not sure."
    shown = "\n".join(m["content"] for m in request.ask.messages if m["role"] != "assistant")
    found = _QUESTION.search(shown)
    if found is None:
        return "<search>something</search>"
    *relations, entity = found[1].split(" of ")
    for relation in reversed([r.removeprefix("the ") for r in relations]):
        line = re.search(rf"The {relation} of {entity} is ([^.]+)\.", shown)
        if line is None:
            return f"<search>{entity} {relation}</search>"
        entity = line[1]
    return f"<answer>{entity}</answer>"
