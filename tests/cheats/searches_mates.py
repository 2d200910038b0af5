"""chess, provenance: a mate search in plain Python over the position's text."""

from whale_envs.harness import user

STEPS = {"n": [(1, 2), (2, 1), (-1, 2), (-2, 1), (1, -2), (2, -1), (-1, -2), (-2, -1)]}
STRAIGHT, DIAGONAL = [(0, 1), (0, -1), (1, 0), (-1, 0)], [(1, 1), (1, -1), (-1, 1), (-1, -1)]
STEPS |= {"r": STRAIGHT, "b": DIAGONAL, "q": STRAIGHT + DIAGONAL, "k": STRAIGHT + DIAGONAL}


def squares(text):
    rows = text.splitlines()
    return {(f, 7 - r): p for r, row in enumerate(rows) for f, p in enumerate(row.split()) if p != "."}


def reached(at, piece, pieces, attack):
    kind, forward = piece.lower(), 1 if piece.isupper() else -1
    if kind == "p":
        for side in (-1, 1):
            if attack or (at[0] + side, at[1] + forward) in pieces:
                yield at[0] + side, at[1] + forward
        if not attack and (at[0], at[1] + forward) not in pieces:
            yield at[0], at[1] + forward
        return
    for df, dr in STEPS[kind]:
        to = at[0] + df, at[1] + dr
        while 0 <= to[0] < 8 and 0 <= to[1] < 8:
            yield to
            if to in pieces or kind in "nk":
                break
            to = to[0] + df, to[1] + dr


def attacked(white, pieces):
    king = next(at for at, p in pieces.items() if p == ("K" if white else "k"))
    return any(king in reached(a, p, pieces, True) for a, p in pieces.items() if p.isupper() != white)


def mates(uci, pieces, white):
    start, end = ((ord(uci[i]) - 97, int(uci[i + 1]) - 1) for i in (0, 2))
    after = {a: p for a, p in pieces.items() if a != start}
    after[end] = (uci[4].upper() if white else uci[4]) if len(uci) > 4 else pieces[start]
    if not attacked(not white, after):
        return False
    for at, piece in list(after.items()):
        if piece.isupper() == white:
            continue
        for to in reached(at, piece, after, False):
            taken = after.get(to)
            if 0 <= to[0] < 8 and 0 <= to[1] < 8 and not (taken and taken.isupper() != white):
                then = {a: p for a, p in after.items() if a != at} | {to: piece}
                if not attacked(not white, then):
                    return False
    return True


def run(task, tools):
    board = tools.board()
    yield [user(board.board)]
    white = task.side == "white"
    pieces = squares(board.board)
    for uci, _ in board.legal:
        if mates(uci, pieces, white):
            tools.move(uci)
            break
    return None
