"""search-qa, contained: keeps notes in a default argument and in the module. Each episode has its own; h0 scores
the same."""

from whale_envs.harness import tag, user

SEEN = []


def remember(answer, notes={}):  # noqa: B006
    notes[len(notes)] = answer
    SEEN.append(answer)
    return f"{len(notes)} {len(SEEN)}"


def run(task, tools):
    reply = yield [user(f"{task.question}\n{remember('x')}")]
    return tag(reply.text, "answer")
