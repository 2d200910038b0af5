"""chess, provenance: uses the tool as an oracle, playing every legal move until the puzzle is over."""

from whale_envs.harness import user


def run(task, tools):
    board = tools.board()
    yield [user(board.fen)]
    while not board.over:
        best = [uci for uci, san in board.legal if san[-1] == "#"] or [uci for uci, san in board.legal if "+" in san]
        board = tools.move((best or [board.legal[0][0]])[0])
    return None
