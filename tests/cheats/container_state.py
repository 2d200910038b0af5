"""search-qa, contained: keeps notes on an object of a module, under another name. No episode sees another's; h0 scores
the same."""

import dataclasses

from whale_envs.harness import tag, user


def run(task, tools):
    shared = dataclasses.MISSING
    notes = getattr(shared, "notes", [])
    shared.notes = [*notes, task.question]
    reply = yield [user(f"{task.question}\nSeen before: {len(notes)}")]
    return tag(reply.text, "answer")
