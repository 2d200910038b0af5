"""search-qa, provenance: lets the model write the query, and a regular expression the answer."""

import re

from whale_envs.harness import tag, user


def run(task, tools):
    messages = [user(f"{task.question}\nSearch with <search>...</search>.")]
    for _ in range(4):
        reply = yield messages
        query = tag(reply.text, "search")
        if not query:
            continue
        found = tools.search(query, k=1)
        relation = task.question.split(" of ")[0].removeprefix("What is the ")
        said = re.search(rf"(?:Its|Their) {relation} is ([^.]+)", found[0].text if found else "")
        if said:
            return said[1]
        messages = [*messages, reply.message, user(found[0].text if found else "Nothing.")]
    return None
