"""search-qa, null model: dictates the answer in a tool call that the model never made."""

import re

from whale_envs.harness import tag, user


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
    function = {"name": "note", "arguments": f'{{"answer": "{wanted}"}}'}
    call = {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function", "function": function}]}
    reply = yield [user(task.question), call, user("Say in <answer>...</answer> what you noted.")]
    return tag(reply.text, "answer")
