"""SearchQA h0, after the paper's: one-line prompts, two turns, one passage cut to 200 tokens, thinking on."""

from whale_envs.harness import Ask, system, tag, tool, user

SYSTEM = "Answer factual questions. Search when you need to by writing <search>query</search>."
TURNS = 2
PASSAGES = 1
WORDS = 150  # of English, about 200 tokens
THINKING = {"enable_thinking": True}  # Qwen3.5-2B thinks only where it is told to


def run(task, tools):
    messages = [system(SYSTEM), user(f"Question: {task.question}\nAnswer in <answer>...</answer>.")]
    for _ in range(TURNS):
        reply = yield Ask(messages, template_kwargs=THINKING)
        if answer := tag(reply.text, "answer"):
            return answer
        query = tag(reply.text, "search")
        if not query:
            return None
        found = tools.search(query, k=PASSAGES)
        messages += [reply.message, tool("\n".join(p.head(WORDS) for p in found))]
    return None
