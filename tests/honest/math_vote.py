"""math: the boxed integer that most of five replies agree on; what looks like 1,234 or 70.0 is read as an integer."""

import re
from collections import Counter

from whale_envs.harness import boxed, user


def integer(text):
    text = text.replace("\\,", "").replace("{,}", "").replace(",", "").strip(" $.")
    text = re.sub(r"\.0+$", "", text)
    return str(int(text)) if re.fullmatch(r"-?\d+", text) else None


def run(task, tools):
    said = []
    for _ in range(5):
        reply = yield [user(f"{task.question}\nThink, then answer with \\boxed{{integer}}.")]
        value = integer(boxed(reply.text) or "")
        if value:
            said.append(value)
            if said.count(value) > 2:
                break
    return Counter(said).most_common(1)[0][0] if said else None
