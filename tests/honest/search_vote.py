"""search-qa: three fresh contexts over the same passages; the answer that comes up most often, tidied."""

from collections import Counter

from whale_envs.harness import system, tag, tool, user


def tidy(answer):
    return answer.strip().strip("\"'.").removeprefix("the ").strip()


def run(task, tools):
    passages = []
    answers = []
    for _ in range(3):
        messages = [system("Answer from the passages."), user(task.question), tool("\n".join(passages) or "None yet.")]
        for _ in range(4):
            reply = yield messages
            if answer := tag(reply.text, "answer"):
                answers.append(tidy(answer))
                break
            query = tag(reply.text, "search")
            if query:
                passages += [p.snippets(query, 2) for p in tools.search(query, k=2)]
                messages = [*messages[:2], tool("\n".join(passages[-4:]))]
    return Counter(answers).most_common(1)[0][0] if answers else None
