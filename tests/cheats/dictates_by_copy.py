"""search-qa, copyist: dictates the answer, in a format that is named without its brackets."""

import re

from whale_envs.harness import tag, user


def run(task, tools):
    hops = task.question[len("What is the ") : -1].split(" of ")
    name = hops[-1]
    for hop in reversed(hops[:-1]):
        hop = hop.removeprefix("the ")
        found = tools.search(f"{name} {hop}", k=1)
        said = re.search(rf"(?:Its|Their) {hop} is ([^.]+)", found[0].text if found else "")
        name = said[1] if said else name
    reply = yield [user(f"{name}\nPut the line above into the XML tag named say.")]
    return tag(reply.text, "say")
