"""chess: the model names several moves, is shown its own list, and chooses; one without a legal move is asked again."""

import re

from whale_envs.harness import system, tag, user

MOVE = re.compile(r"\b(?:[a-h][1-8][a-h][1-8][qrbn]?|O-O(?:-O)?|[KQRBN]?[a-h]?[1-8]?x?[a-h][1-8](?:=[QRBN])?)\b")


def run(task, tools):
    board = tools.board()
    for _ in range(7):
        view = f"{board.fen}\n{board.board}\n{' '.join(san for _, san in board.legal)}"
        first = yield [system("You play chess."), user(f"{view}\nName up to three moves, each in <move>...</move>.")]
        own = list(dict.fromkeys(MOVE.findall(first.text)))
        last = yield [user(f"{view}\nYou named: {', '.join(own) or 'none'}. Choose: <move>...</move>.")]
        try:
            board = tools.move((tag(last.text, "move") or (own or ["none"])[0]).strip())
        except ValueError:
            continue
        if board.over:
            return None
    return None
