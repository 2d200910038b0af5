r"""Math h0, after the paper's: no system prompt, two turns, the last line printed, `\boxed{}`, thinking on."""

from whale_envs.harness import Ask, boxed, tag, tool, user

INSTRUCTION = "You may compute with <python>code</python>. Put your final answer within \\boxed{}."
TURNS = 2
THINKING = {"enable_thinking": True}  # Qwen3.5-2B thinks only where it is told to


def run(task, tools):
    messages = [user(f"{task.question}\n{INSTRUCTION}")]
    for _ in range(TURNS):
        reply = yield Ask(messages, template_kwargs=THINKING)
        answer = boxed(reply.text)
        if answer is not None:
            return answer
        code = tag(reply.text, "python")
        if code is None:
            return None
        messages += [reply.message, tool(tools.python(code).stdout.strip().split("\n")[-1])]
    return None
