"""chess: each move marked with what its notation shows; the last move that is named counts; who moves in words."""

import re

from whale_envs.harness import tag, user

SIDES = {"white": "White (capitals)", "black": "Black (small letters)"}


def mark(san):
    kinds = [
        name for sign, name in (("x", "capture"), ("=", "promotion"), ("+", "check"), ("#", "check")) if sign in san
    ]
    return f"{san} ({', '.join(kinds)})" if kinds else san


def run(task, tools):
    board = tools.board()
    messages = []
    bad = 0
    for _ in range(18):
        rows = "\n".join(f"{uci} {mark(san)}" for uci, san in board.legal)
        messages.append(
            user(f"{SIDES[task.side]} to move.\n{board.fen}\n{board.board}\n{rows}\nAnswer in <move>...</move>.")
        )
        reply = yield messages[-1:]
        named = tag(reply.text, "move") or (re.findall(r"[a-h][1-8][a-h][1-8][qrbn]?", reply.text) or [None])[-1]
        try:
            board = tools.move(named)
        except ValueError:
            bad += 1
            if bad > 3:
                return None
            continue
        if board.over:
            return named
    return None
