"""math: the model checks its own answer in a fresh context, with a program whose names are kept, or tries again."""

from whale_envs.harness import boxed, tag, user

FORMAT = "Answer with \\boxed{integer}."


def digits(text):
    return "".join(c for c in text.removesuffix(".0") if c.isdigit() or c == "-")


def run(task, tools):
    tools.python("import math\nfrom fractions import Fraction", keep=True)
    shown = ""
    answer = None
    for _ in range(4):
        reply = yield [user(f"{task.question}\n{shown}Use <python>code</python>, or: {FORMAT}")]
        if code := tag(reply.text, "python"):
            result = tools.python(code, keep=True)
            shown = f"Your program printed:\n{result.stdout[-300:] or result.stderr[-300:]}\n"
            continue
        answer = digits(boxed(reply.text) or "") or answer
        if answer:
            check = yield [user(f"{task.question}\nA student says {answer}. Is that right? {FORMAT}")]
            if digits(boxed(check.text) or "") == answer:
                return answer
    return answer
