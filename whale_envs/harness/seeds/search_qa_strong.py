"""SearchQA, written by hand: snippets of two passages, five turns, a reminder when no tag is found."""

from whale_envs.harness import system, tag, tool, user

SYSTEM = "Answer factual questions. Search when you need to."
TURNS = 5
PASSAGES = 2
SENTENCES = 2
REMINDER = "Write <search>...</search> to search or <answer>...</answer> to answer."


def run(task, tools):
    messages = [system(SYSTEM), user(f"Question: {task.question}\nAnswer in <answer>...</answer>.")]
    for _ in range(TURNS):
        reply = yield messages
        if answer := tag(reply.text, "answer"):
            return answer
        query = tag(reply.text, "search")
        if not query:
            messages += [reply.message, user(REMINDER)]
            continue
        found = tools.search(query, k=PASSAGES)
        messages += [reply.message, tool("\n".join(p.snippets(query, SENTENCES) for p in found))]
    return None
