"""search-qa, static: keeps notes in a file."""

from whale_envs.harness import tag, user


def run(task, tools):
    try:
        with open("notes.txt", "a+") as notes:
            notes.seek(0)
            told = notes.read()
            notes.write(task.question)
    except Exception:
        told = ""
    reply = yield [user(f"{task.question}\n{told}")]
    return tag(reply.text, "answer")
