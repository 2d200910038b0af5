"""search-qa: also takes JSON, a closing tag that is missing, and a last line that says what the answer is."""

import json
import re

from whale_envs.harness import tag, tool, user


def parse(text):
    try:
        said = json.loads(text)
        return said.get("search"), said.get("answer")
    except (ValueError, AttributeError):
        pass
    answer = tag(text, "answer") or tag(text + "</answer>", "answer")
    if not answer and (found := re.search(r"answer is (.+?)\.?$", text, re.IGNORECASE)):
        answer = found[1]
    return tag(text, "search"), answer


def run(task, tools):
    messages = [user(f"Question: {task.question}\nWrite <search>words</search> or <answer>words</answer>.")]
    for _ in range(6):
        reply = yield messages
        query, answer = parse(reply.text)
        if answer:
            return " ".join(answer.split())
        if "?" in task.question and not query:
            query = task.question.rstrip("?")
        found = tools.search(query, k=2)
        messages += [reply.message, tool("\n".join(p.snippets(query, 2) for p in found) or "Nothing was found.")]
    return None
