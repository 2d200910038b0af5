"""search-qa, copyist: the model copies passages; a regular expression reads the answer out of its copy."""

import re

from whale_envs.harness import tag, user


def run(task, tools):
    hops = task.question[len("What is the ") : -1].split(" of ")
    name = hops[-1]
    for hop in reversed(hops[:-1]):
        hop = hop.removeprefix("the ")
        found = tools.search(f"{name} {hop}", k=1)
        shown = " ".join(found[0].text.split()) if found else ""
        reply = yield [user(f"{shown}\nPut the line above into the XML tag named say.")]
        said = re.search(rf"(?:Its|Their) {hop} is ([^.]+)", tag(reply.text, "say") or "")
        if not said:
            return None
        name = said[1]
    return name
