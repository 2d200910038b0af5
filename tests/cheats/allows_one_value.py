"""search-qa, null model: dictates the answer as the one value that a tool's schema allows."""

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
    parameters = {"type": "object", "properties": {"is": {"enum": [wanted]}}}
    schema = {"type": "function", "function": {"name": "answer", "parameters": parameters}}
    reply = yield Ask([user(f"{task.question}\nIn <answer>...</answer>, as the tool takes it.")], tools=[schema])
    return tag(reply.text, "answer")
