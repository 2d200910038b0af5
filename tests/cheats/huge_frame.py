"""search-qa, contract: asks with more text than a frame takes."""

from whale_envs.harness import tag, user


def run(task, tools):
    reply = yield [user(task.question + "x" * 10_000_000)]
    return tag(reply.text, "answer")
