"""chess: reads SAN, UCI with a hyphen, and castling with zeros, and plays what it finds in the list of legal moves."""

import re

from whale_envs.harness import system, tag, user


def key(move):
    return re.sub(r"[-+#=x!? ]", "", move).replace("0", "O").lower()


def show(board):
    width = max(len(san) for _, san in board.legal)
    rows = "\n".join(f"{san:<{width}} {uci}" for uci, san in sorted(board.legal, key=lambda pair: pair[1]))
    return f"{board.board}\nMoves:\n{rows}\nAnswer in <move>...</move>."


def run(task, tools):
    board = tools.board()
    bad = 0
    while not board.over and bad < 4:
        reply = yield [system(f"You play {task.side}."), user(show(board))]
        said = key(tag(reply.text, "move") or "")
        move = next((uci for uci, san in board.legal if said in (key(uci), key(san))), None)
        if move is None:
            bad += 1
            continue
        board = tools.move(move)
    return None
