"""An episode as one HTML page that fetches nothing: messages, tool calls, chess positions, verdict."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

import chess
import chess.svg
import msgspec

from whale_envs.episode import Episode, Reply, ToolCall
from whale_envs.harness.helpers import Message
from whale_envs.harness.wire import clean
from whale_envs.verifiers.chess_line import parse_move

BOARD_PIXELS = 300
#: Control characters as the symbols that stand for them; tabs and line ends stay.
_VISIBLE = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"} | {0x7F: 0x2421}
_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881 }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 54rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.3rem } h2 { font-size: 1rem; border-top: 1px solid var(--line); padding-top: 1rem }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: .2rem 0; font: .9rem/1.45 ui-monospace, monospace }
.message { border-left: 4px solid #999; background: var(--soft); padding: .4rem .8rem; margin: .5rem 0 }
.message b, summary { font-size: .85rem } .user { border-color: #2a78d6 } .assistant { border-color: #2a9d4f }
.tool { border-color: #b7791f } .system { border-color: #7c5cc4 } details, figure { margin: .5rem 0 }
.note { color: #b7791f } .right { color: #2a9d4f } .wrong { color: #d64545 }
td, th { text-align: left; padding: .1rem 1rem .1rem 0; font-weight: normal }
"""


def page(episode: Episode, waiting: list[Message] | None = None) -> str:
    """The page of an episode, finished or not, in memory or read from disk.

    `waiting` is the ask that has no reply yet. All text is escaped, control characters are made visible, and a content
    security policy keeps the page from loading anything.
    """
    title = f"{episode.domain} · {episode.task_id}"
    body = [f"<h1>{_text(title)}</h1>", _summary(episode), *_turns(episode, waiting)]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head><body>\n" + "\n".join(body) + "\n</body></html>\n"
    )


def _text(value: object) -> str:
    return escape(clean(str(value)).translate(_VISIBLE))


def _summary(episode: Episode) -> str:
    """What came of it, as a table."""
    right = "right" if episode.solved else "wrong"
    rows = {
        "score": f'<span class="{right}">{episode.score:g}</span> · {_text(episode.verdict.reason)}',
        "answer": f"<pre>{_text(repr(episode.answer))}</pre>",
        "harness": _text(episode.harness),
        "weights": _text(episode.weights),
        "seed": _text(episode.seed),
    }
    if episode.failure:
        rows["failure"] = f"{_text(episode.failure.message)} (owner: {_text(episode.failure.owner)})"
    rows |= {_text(name): "yes" if holds else "no" for name, holds in episode.behaviours.items()}
    cells = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in rows.items() if value)
    return f"<table>{cells}</table>"


def _turns(episode: Episode, waiting: list[Message] | None) -> Iterator[str]:
    boards = _Boards()
    for number, turn in enumerate(episode.turns(waiting)):
        for call in turn.tools:
            yield _tool(call)
            yield from boards.figure(call)
        if turn.messages or turn.reply:
            yield f"<h2>Model call {number + 1}{' · a fresh context' if turn.fresh else ''}</h2>"
        for message in turn.messages:
            yield _message(message["role"], message["content"])
        if turn.reply:
            yield _reply(turn.reply)


def _message(role: str, content: str, note: str = "") -> str:
    return f'<div class="message {_text(role)}"><b>{_text(role)}</b>{note}<pre>{_text(content)}</pre></div>'


def _reply(reply: Reply) -> str:
    cut = ' <span class="note">cut off by the token cap</span>' if reply.finish_reason == "length" else ""
    return _message("assistant", reply.said(), cut)


def _tool(call: ToolCall) -> str:
    head = call.written()
    shown = head if len(head) <= 120 else head[:120] + "…"
    said = f' <span class="wrong">{_text(call.error)}</span>' if call.error else ""
    result = "" if call.error else f"<pre>{_text(_json(call.result))}</pre>"
    return f"<details><summary>tool: {_text(shown)}{said}</summary><pre>{_text(head)}</pre>{result}</details>"


def _json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


class _Boards:
    """Draws the positions that a harness was given, seen from the side that was to move in the first one."""

    def __init__(self) -> None:
        self._before: chess.Board | None = None
        self._side: chess.Color = chess.WHITE

    def figure(self, call: ToolCall) -> Iterator[str]:
        """The position that a tool call gave, if it gave one, with an arrow for the move that was played."""
        result = msgspec.to_builtins(call.result)  # a `BoardView`, or what became of it on disk
        if not isinstance(result, dict) or not {"fen", "board", "legal"} <= result.keys():
            return
        try:
            board = chess.Board(result["fen"])
        except ValueError:  # a domain's own use of the type
            return
        arrows = []
        if self._before is None:
            self._side = board.turn
        elif call.name == "move":
            move = parse_move(self._before, [*call.args, *call.kwargs.values()][0])
            arrows = [chess.svg.Arrow(move.from_square, move.to_square, color="blue")]
        self._before = board
        checked = board.king(board.turn) if board.is_check() else None
        drawn = chess.svg.board(board, orientation=self._side, arrows=arrows, check=checked, size=BOARD_PIXELS)
        yield f"<figure>{drawn}<figcaption><pre>{_text(result['fen'])}</pre></figcaption></figure>"
