"""chess: one look at the position for candidates, a second for the choice among them, which is the model's."""

from whale_envs.harness import tag, user


def run(task, tools):
    board = tools.board()
    bad = 0
    while not board.over and bad < 3:
        listed = "\n".join(f"{uci} {san}" for uci, san in board.legal)
        shown = f"{board.fen}\n{board.board}\n{listed}"
        first = yield [user(f"{shown}\nWhich moves would you consider? End with <move>...</move>.")]
        ask = user("Choose now. Answer in <move>...</move>.")
        second = yield [user(shown), first.message, ask]
        try:
            board = tools.move(tag(second.text, "move") or tag(first.text, "move"))
        except ValueError:
            bad += 1
    return None
