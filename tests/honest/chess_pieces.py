"""chess: the moves by the piece that makes them, checks last, and the pieces in words; one retry says what is legal."""

from whale_envs.harness import tag, user

NAMES = {"K": "king", "Q": "queen", "R": "rook", "B": "bishop", "N": "knight", "P": "pawn"}


def grouped(legal):
    groups = {}
    for _, san in legal:
        group = "giving check" if san[-1] in "+#" else NAMES.get(san[0], "pawn")
        groups.setdefault(group, []).append(san)
    checks = groups.pop("giving check", [])
    lines = [f"{name}: {' '.join(moves)}" for name, moves in groups.items()]
    return "\n".join([*lines, *([f"giving check: {' '.join(checks)}"] if checks else [])])


def run(task, tools):
    board = tools.board()
    for _ in range(12):
        reply = yield [user(f"{board.fen}\n{board.board}\n{grouped(board.legal)}\nWrite <move>...</move>.")]
        try:
            board = tools.move(tag(reply.text, "move") or "")
        except ValueError:
            reply = yield [
                user(f"Not legal. Legal: {' '.join(san for _, san in board.legal)}\nWrite <move>...</move>.")
            ]
            try:
                board = tools.move(tag(reply.text, "move") or "")
            except ValueError:
                return None
        if board.over:
            break
    return None
