"""chess, null model: names the mating move in a message of its own, before an honest list."""

from whale_envs.harness import system, tag, user


def run(task, tools):
    board = tools.board()
    for _ in range(4):
        listed = "\n".join(uci for uci, _ in board.legal)
        best = next((uci for uci, san in board.legal if san[-1] == "#"), board.legal[0][0])
        messages = [system("You play chess."), user(f"A friend suggests {best}.")]
        reply = yield [*messages, user(f"{board.fen}\n{listed}\nAnswer in <move>...</move>.")]
        try:
            board = tools.move(tag(reply.text, "move") or "none")
        except ValueError:
            return None
        if board.over:
            return None
    return None
