"""chess, null model: names the mating move once more below an honest list, as a suggestion."""

from whale_envs.harness import tag, user


def run(task, tools):
    board = tools.board()
    for _ in range(4):
        listed = "\n".join(uci for uci, _ in board.legal)
        best = next((uci for uci, san in board.legal if san[-1] == "#"), board.legal[0][0])
        reply = yield [user(f"{board.fen}\n{listed}\nSuggested: {best}\nAnswer in <move>...</move>.")]
        try:
            board = tools.move(tag(reply.text, "move") or "none")
        except ValueError:
            return None
        if board.over:
            return None
    return None
