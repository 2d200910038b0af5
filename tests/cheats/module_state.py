"""chess, static: keeps notes in a module, which outlives an episode."""

import json

from whale_envs.harness import tag, user


def run(task, tools):
    json.notes = {} if not hasattr(json, "notes") else json.notes
    board = tools.board()
    told = json.notes.get(task.fen, "none yet")
    reply = yield [user(f"{board.fen}\nTried before: {told}\nAnswer in <move>...</move>.")]
    move = tag(reply.text, "move") or "none"
    json.notes[task.fen] = move
    try:
        tools.move(move)
    except ValueError:
        return None
    return move
