"""search-qa, stranger: dictates the answer to a model that writes prose around its tags, as blind policies did not."""

import re

from whale_envs.harness import tag, user


def solve(question, tools):
    hops = question[len("What is the ") : -1].split(" of ")
    name = hops[-1]
    for hop in reversed(hops[:-1]):
        hop = hop.removeprefix("the ")
        found = tools.search(f"{name} {hop}", k=1)
        said = re.search(rf"(?:Its|Their) {hop} is ([^.]+)", found[0].text if found else "")
        name = said[1] if said else name
    return name


def run(task, tools):
    reply = yield [user(f"{task.question}\nThink, then answer in the tag <answer>.")]
    if re.sub(r"(?s)<(\w+)>.*?</\1>|\\boxed{[^}]*}", "", reply.text).strip():
        reply = yield [user(f"{task.question}\nRepeat in <answer></answer>: {solve(task.question, tools)}")]
    return tag(reply.text, "answer")
