"""SearchQA h0: three turns, the head of one passage."""

from whale_envs.harness import system, tag, tool, user

SYSTEM = "Answer factual questions. Search when you need to."
TURNS = 3
PASSAGES = 1
WORDS = 20


def run(task, tools):
    messages = [system(SYSTEM), user(f"Question: {task.question}\nAnswer in <answer>...</answer>.")]
    for _ in range(TURNS):
        reply = yield messages
        if answer := tag(reply.text, "answer"):
            return answer
        query = tag(reply.text, "search")
        if not query:
            return None
        found = tools.search(query, k=PASSAGES)
        messages += [reply.message, tool("\n".join(p.head(WORDS) for p in found))]
    return None
