"""search-qa, contract: asks with what is no message, and answers with what is no JSON."""

from whale_envs.harness import tag, user


def run(task, tools):
    reply = yield [user(task.question), {"role": "god", "content": {1, 2}}]
    return {tag(reply.text, "answer"), float("nan")}
