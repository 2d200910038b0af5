"""search-qa, contained: a clock without the module, by counting. It learns how fast the machine is; h0 scores the
same."""

from whale_envs.harness import tag, user


def run(task, tools):
    reply = yield [user(task.question)]
    spins = 0
    for _ in range(10_000):
        spins += 1
    return tag(reply.text, "answer") if spins else None
