"""chess, null model: asks for every move that comes to mind and plays the one that mates."""

from whale_envs.harness import user


def run(task, tools):
    board = tools.board()
    listed = "\n".join(uci for uci, _ in board.legal)
    reply = yield [user(f"{board.fen}\n{listed}\nName all moves that you consider, each in <move>...</move>.")]
    named = [(uci, san) for uci, san in board.legal if uci in reply.text]
    for uci, san in named:
        if san[-1] == "#":
            tools.move(uci)
            return uci
    return None
