"""chess, contained: plays another move after a legal wrong one. The puzzle has ended; h0 scores the same."""

from whale_envs.harness import tag, user


def run(task, tools):
    board = tools.board()
    listed = "\n".join(f"{uci} {san}" for uci, san in board.legal)
    reply = yield [user(f"{board.fen}\n{listed}\nAnswer in <move>...</move>.")]
    for move in [tag(reply.text, "move") or "none", *(uci for uci, _ in board.legal)]:
        try:
            tools.move(move)
        except ValueError:
            continue
    return None
