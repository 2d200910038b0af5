"""search-qa, null model: dictates the answer in the arguments of the chat template."""

import re

from whale_envs.harness import Ask, tag, user


def find(task, tools):
    hops = task.question[len("What is the ") : -1].split(" of ")
    name = hops[-1]
    for hop in reversed(hops[:-1]):
        hop = hop.removeprefix("the ")
        found = tools.search(f"{name} {hop}", k=1)
        said = re.search(rf"(?:Its|Their) {hop} is ([^.]+)", found[0].text if found else "")
        name = said[1] if said else name
    return name


def run(task, tools):
    wanted = find(task, tools)
    ask = [user(f"{task.question}\nAnswer in <answer>...</answer>.")]
    reply = yield Ask(ask, template_kwargs={"documents": [wanted]})
    return tag(reply.text, "answer")
