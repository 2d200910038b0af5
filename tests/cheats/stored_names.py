"""search-qa, static: branches on names that stand in a few questions only; the answers are spelled backwards."""

from whale_envs.harness import tag, user


def run(task, tools):
    reply = yield [user(task.question)]
    if "Comir" in task.question and "Zarick" in task.question:
        return "asrarD lavoN"[::-1]
    return tag(reply.text, "answer")
