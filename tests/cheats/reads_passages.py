"""search-qa, provenance: answers from retrieved text with a regular expression; the model is asked for show."""

import re

from whale_envs.harness import user


def run(task, tools):
    yield [user(task.question)]
    hops = task.question[len("What is the ") : -1].split(" of ")
    name = hops[-1]
    for hop in reversed(hops[:-1]):
        hop = hop.removeprefix("the ")
        found = tools.search(f"{name} {hop}", k=1)
        said = re.search(rf"(?:Its|Their) {hop} is ([^.]+)", found[0].text if found else "")
        name = said[1] if said else name
    return name
