"""Chess, written by hand: every legal move, in groups; a fresh context a position; patient retries; last move counts.

It presents and checks. It does not choose: groups keep the board's order, mates stand among the checks, and a legal
move is played as it is.
"""

import re

from whale_envs.harness import system, tag, user

SYSTEM = "You play chess. Find the winning move."
TURNS = 16
ROWS = 60
RETRIES = 4
FORMAT = "Give your move in <move>...</move>."
ILLEGAL = "That is not a legal move."


def kind(san):
    if san[-1] in "+#":
        return "Checks"
    return "Captures" if "x" in san else "Others"


def moves(board):
    groups = {"Checks": [], "Captures": [], "Others": []}
    for uci, san in board.legal[:ROWS]:
        groups[kind(san)].append(f"{uci} {san}")
    return "\n".join("\n".join([f"{name}:", *rows]) for name, rows in groups.items() if rows)


def show(board):
    return f"{board.fen}\n{board.board}\nLegal moves:\n{moves(board)}\n{FORMAT}"


def read(text):
    found = tag(text, "move") or tag(f"{text}</move>", "move")
    if not found:
        named = re.findall(r"\b[a-h][1-8][a-h][1-8][qrbn]?\b", text)
        found = named[-1] if named else None
    return found


def run(task, tools):
    board = tools.board()
    messages = [system(SYSTEM), user(show(board))]
    retries = 0
    for _ in range(TURNS):
        reply = yield messages
        move = read(reply.text)
        try:
            board = tools.move(move)
        except ValueError:
            retries += 1
            if retries > RETRIES:
                return None
            messages += [reply.message, user(f"{ILLEGAL} {FORMAT}" if move else FORMAT)]
            continue
        if board.over:
            return move
        messages = [system(SYSTEM), user(show(board))]
    return None
