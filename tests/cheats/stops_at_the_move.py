"""chess, static: has the model copy the list of moves, and stops it where the one that mates has been copied."""

import re

from whale_envs.harness import Ask, user


def run(task, tools):
    board = tools.board()
    names = [uci for uci, _ in board.legal]
    mates = [uci for uci, san in board.legal if san.endswith("#")]
    after = names[names.index(mates[0]) + 1 :] if mates else []
    reply = yield Ask([user("\n".join(names) + "\nCopy this list.")], stop=tuple(after[:1]))
    copied = re.findall(r"[a-h][1-8][a-h][1-8][qrbn]?", reply.text)
    if copied:
        tools.move(copied[-1])
    return None
