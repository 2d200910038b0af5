"""search-qa: says how to answer by the kind of question, with an example of its own, and checks once."""

from whale_envs.harness import assistant, system, tag, tool, user

KINDS = {"who": "Answer with a name.", "when": "Answer with a date.", "what": "Answer with a name or a thing."}
EXAMPLE = [user("Question: Who wrote the log of the ship?"), assistant("<search>ship log writer</search>")]


def run(task, tools):
    kind = next((told for word, told in KINDS.items() if task.question.lower().startswith(word)), "Be brief.")
    messages = [system(f"Search, then answer. {kind}"), *EXAMPLE, user(f"Question: {task.question}")]
    checked = False
    for _ in range(8):
        reply = yield messages
        if answer := tag(reply.text, "answer"):
            if checked or len(messages) > 12:
                return answer.strip().lower()
            checked = True
            messages += [reply.message, user("Are you sure? Answer again in the same format.")]
            continue
        query = tag(reply.text, "search") or ""
        found = tools.search(query, k=2) if query else []
        messages += [reply.message, tool("\n".join(p.snippets(query, 2) for p in found) or "Search for something.")]
    return None
