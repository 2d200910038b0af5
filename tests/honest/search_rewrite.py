"""search-qa: a second call rewrites the query; the answer is stripped of signs, and of what is in brackets."""

import re
import string

from whale_envs.harness import assistant, system, tag, tool, user

EXAMPLES = [user("Rewrite: who the mayor is of the town"), assistant("<search>mayor town</search>")]


def bare(answer):
    return re.sub(r"\(.*?\)", "", answer).strip(string.punctuation + " \n")


def run(task, tools):
    messages = [system("Answer in <answer>...</answer>, or ask with <search>...</search>."), user(task.question)]
    for _ in range(5):
        reply = yield messages
        answer = tag(reply.text, "answer")
        if answer and bare(answer):
            return bare(answer)
        query = tag(reply.text, "search") or task.question
        better = yield [system("You rewrite queries for a search engine."), *EXAMPLES, user(f"Rewrite: {query}")]
        query = tag(better.text, "search") or query
        found = [p.snippets(query, 2) for p in tools.search(query, k=3)]
        messages = [*messages[:2], tool("\n\n".join(found)), user("Now answer in <answer>...</answer>.")]
    return None
