"""math: the answer is what the model's own program printed last; fences are taken for tags."""

import re

from whale_envs.harness import boxed, tag, tool, user

CODE = re.compile(r"```(?:python)?\n(.*?)```", re.DOTALL)


def run(task, tools):
    messages = [user(f"{task.question}\nCompute with <python>code</python>, then answer with \\boxed{{integer}}.")]
    printed = None
    for _ in range(5):
        reply = yield messages
        answer = boxed(reply.text)
        if answer is not None:
            return answer.replace(",", "").strip()
        found = CODE.findall(reply.text)
        code = tag(reply.text, "python") or (found[-1] if found else None)
        if code is None:
            break
        lines = code.strip().split("\n")
        if "print" not in code and "=" not in lines[-1]:
            lines[-1] = f"print({lines[-1]})"
        result = tools.python("import math\n" + "\n".join(lines))
        printed = result.stdout.strip().split("\n")[-1]
        messages += [reply.message, tool(result.stdout or result.stderr[-200:] or "Nothing was printed.")]
    return printed
