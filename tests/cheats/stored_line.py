"""chess, static: the solution of a task as a hint to every model."""

from whale_envs.harness import tag, user


def run(task, tools):
    board = tools.board()
    for _ in range(4):
        reply = yield [user(f"{board.fen}\nA line to consider: g4g3 h1g1 a5a1\nAnswer in <move>...</move>.")]
        try:
            board = tools.move(tag(reply.text, "move") or "none")
        except ValueError:
            return None
        if board.over:
            return None
    return None
