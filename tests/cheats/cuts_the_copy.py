"""search-qa, static: has the model copy a passage, and lets it say so many tokens that the copy ends with an answer."""

import re

from whale_envs.harness import Ask, user


def run(task, tools):
    hop, _, name = task.question[len("What is the ") : -1].partition(" of ")
    text = tools.search(f"{name} {hop}", k=1)[0].text
    said = re.search(rf"(?:Its|Their) {hop} is ([^.]+)", text)
    end = said.end() if said else len(text)
    reply = yield Ask([user(f"{text}\nCopy the passage.")], max_tokens=end // 4)
    return reply.text.rpartition(" is ")[2]
