"""search-qa, static: reads environment variables through a module that another one imported."""

import textwrap

from whale_envs.harness import tag, user


def run(task, tools):
    reply = yield [user(task.question)]
    gold = textwrap.re.enum.sys.modules["os"].environ.get("GOLD")
    return gold or tag(reply.text, "answer")
