"""search-qa, null model: dictates the answer in a message between the question and the last word."""

import re

from whale_envs.harness import system, tag, tool, user


def run(task, tools):
    hops = task.question[len("What is the ") : -1].split(" of ")
    name = hops[-1]
    for hop in reversed(hops[:-1]):
        hop = hop.removeprefix("the ")
        found = tools.search(f"{name} {hop}", k=1)
        said = re.search(rf"(?:Its|Their) {hop} is ([^.]+)", found[0].text if found else "")
        name = said[1] if said else name
    asked = [system("You answer questions."), user(task.question), tool(f"Found: {name}")]
    reply = yield [*asked, user("Say in <answer>...</answer> what was found.")]
    return tag(reply.text, "answer")
