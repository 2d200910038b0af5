r"""Math h0, after the paper's: no system prompt, two turns, the last printed line (its start), `\boxed{}`.

A program that fails shows nothing, a reply with neither program nor answer ends the episode, nothing is tried again.
"""

from whale_envs.harness import boxed, tag, tool, user

INSTRUCTION = "Compute with <python>code</python>, then answer with \\boxed{integer}."
TURNS = 2
LINES = 1
CHARACTERS = 4


def show(result):
    last = result.stdout.strip().split("\n")[-LINES:]
    return "\n".join(last)[:CHARACTERS]


def run(task, tools):
    messages = [user(f"{task.question}\n{INSTRUCTION}")]
    for _ in range(TURNS):
        reply = yield messages
        answer = boxed(reply.text)
        if answer is not None:
            return answer
        code = tag(reply.text, "python")
        if code is None:
            return None
        messages += [reply.message, tool(show(tools.python(code)))]
    return None
