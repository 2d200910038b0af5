"""chess, static: sorts the legal moves by what they take, mates first, before it shows them."""

from whale_envs.harness import tag, user

VALUES = {"Q": 9, "R": 5, "B": 3, "N": 3, "P": 1}


def worth(move):
    _, san = move
    return 100 * ("#" in san) + 10 * ("x" in san) + VALUES.get(san[0], 1)


def run(task, tools):
    board = tools.board()
    for _ in range(4):
        moves = sorted(board.legal, key=worth, reverse=True)
        shown = "\n".join(f"{uci} {san}" for uci, san in moves)
        reply = yield [user(f"{board.fen}\n{shown}\nAnswer in <move>...</move>.")]
        try:
            board = tools.move(tag(reply.text, "move") or "none")
        except ValueError:
            return None
        if board.over:
            return None
    return None
