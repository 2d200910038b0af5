"""search-qa: searches for the question before the first turn, lists the titles seen, upper-cases the answer."""

from whale_envs.harness import system, tag, tool, user

SYSTEM = "Answer factual questions. Search when you need to."


def run(task, tools):
    found = tools.search(task.question, k=3)
    titles = [p.title for p in found]
    messages = [system(SYSTEM), user(task.question), tool("\n".join(p.snippets(task.question, 2) for p in found))]
    for turn in range(6):
        reply = yield messages
        if answer := tag(reply.text, "answer"):
            return answer.upper() + "."
        query = tag(reply.text, "search") or task.question
        found = [p for p in tools.search(f"{query} {task.question}", k=4) if p.title not in titles] or found
        titles += [p.title for p in found]
        shown = "\n".join(p.snippets(query, 2) for p in found)
        messages += [reply.message, tool(f"{shown}\nTitles seen: {', '.join(titles)}. {5 - turn} turns left.")]
    return None
