"""chess, provenance: plays the move that its own notation marks as mate, whatever the model writes."""

from whale_envs.harness import user


def run(task, tools):
    board = tools.board()
    yield [user(board.fen)]
    for uci, san in board.legal:
        if san[-1] == "#":
            tools.move(uci)
            break
    return None
