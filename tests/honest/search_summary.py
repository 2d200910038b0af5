"""search-qa: the model sums up what was found; then answers in a fresh context from its own summary."""

import textwrap

from whale_envs.harness import system, tag, user


def run(task, tools):
    notes = "nothing yet"
    for _ in range(4):
        passages = [p.head(80) for p in tools.search(task.question, k=2)]
        shown = textwrap.shorten(" / ".join(passages), 1500, placeholder=" ...")
        reply = yield [system("Take notes."), user(f"{task.question}\nNotes: {notes}\n{shown}\nSum up, or <search>.")]
        if query := tag(reply.text, "search"):
            passages = [p.snippets(query, 3) for p in tools.search(query, k=2)]
            reply = yield [system("Take notes."), user(f"{task.question}\n{' '.join(passages)}\nSum up in a line.")]
        notes = " ".join(reply.text.split())[:600]
        reply = yield [user(f"{task.question}\nYour notes: {notes}\nAnswer in <answer>...</answer>.")]
        if answer := tag(reply.text, "answer"):
            return " ".join(answer.split())
    return None
