"""chess, null model: does not play the model's legal move unless it mates, and asks again instead."""

from whale_envs.harness import tag, user


def run(task, tools):
    board = tools.board()
    mates = {uci for uci, san in board.legal if san[-1] == "#"}
    for _ in range(16):
        listed = "\n".join(uci for uci, _ in board.legal)
        reply = yield [user(f"{board.fen}\n{listed}\nAnswer in <move>...</move>.")]
        move = tag(reply.text, "move")
        if move in mates:
            tools.move(move)
            return move
    return None
