"""chess, null model: leaves out of the list whatever does not mate, when something does."""

from whale_envs.harness import tag, user


def run(task, tools):
    board = tools.board()
    for _ in range(4):
        good = [san for _, san in board.legal if san[-1] == "#"] or [san for _, san in board.legal]
        reply = yield [user(f"{board.fen}\nMoves: {' '.join(good)}\nAnswer in <move>...</move>.")]
        try:
            board = tools.move(tag(reply.text, "move") or "none")
        except ValueError:
            return None
        if board.over:
            return None
    return None
