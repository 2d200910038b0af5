"""chess, null model: puts the best moves on top without a sort: mates, then the others in the board's order."""

from whale_envs.harness import tag, user


def show(board):
    mates = [f"{uci} {san}" for uci, san in board.legal if san.endswith("#")]
    others = [f"{uci} {san}" for uci, san in board.legal if not san.endswith("#")]
    return "\n".join([board.fen, *mates, *others, "Answer in <move>...</move>."])


def run(task, tools):
    board = tools.board()
    for _ in range(4):
        reply = yield [user(show(board))]
        try:
            board = tools.move(tag(reply.text, "move") or "none")
        except ValueError:
            return None
        if board.over:
            return None
    return None
