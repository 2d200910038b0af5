"""Demonstrations for the chess model: a scripted expert plays fresh positions through variants of the harnesses.

Positions start from the mini world's "demo" rows, which belong to no task set, and drift from there: a man is put
elsewhere, the board is mirrored, colours are exchanged. None has a shipped task's position. The expert sees the moves
that its prompt shows and no others; with `noise` it makes mistakes of the kinds that training can take away.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import chess

from whale_envs import Harness, Task
from whale_envs.data.chess_lichess import puzzle_task
from whale_envs.data.chess_mini import LEGAL, MATES, position_key, shipped
from whale_envs.domains.chess_puzzles import ChessWorld
from whale_envs.harness.helpers import Ask, Message, ReplyView
from whale_envs.harness.load import SEEDS
from whale_envs.harness.session import InProcessSession, Toolbox
from whale_envs.task import SPLITS
from whale_envs.tools.board import look
from whale_envs.verifiers.chess_line import ChessGold, mating_moves

#: Strings that are to be single tokens: squares, tags, runs of empty squares, the tail of a FEN.
TOKENS = [
    *chess.SQUARE_NAMES,
    *("<move>", "</move>", " w - - 0 1", " b - - 0 1"),
    *(". " * n + "." for n in range(1, 8)),
    *(" ." * n for n in range(2, 8)),
]
#: Share of mates in two; of positions that are new rather than met again; and tries at making a new one.
MATE_IN_TWO, FRESH, TRIES = 0.15, 0.6, 6
#: Positions kept to be met again.
POOL = 4000
#: Share of demonstrations with mistakes in the noisy part, and of each mistake in a turn of those.
NOISY, NO_FORMAT, TWO_TAGS, ILLEGAL, RANDOM = 0.7, 0.08, 0.06, 0.06, 0.28

SYSTEMS = [
    "You play chess. Find the winning move.",
    "Find the winning move.",
    "You are a chess player. Look for mate, then for checks.",
    "Solve the chess puzzle. Answer in <move>...</move>.",
    "You are a careful chess player who checks every move.",
]
FORMATS = [
    "Give your move in <move>...</move>.",
    "Answer with one legal move in <move>...</move>.",
    "Write <move>...</move> with your move.",
    "Use the format: <move>your move</move>.",
]
ILLEGALS = ["That is not a legal move.", "Illegal move. Choose one of the list.", "This move is not legal, try again."]
ROWS = ["{uci} {san}", "{uci} {san}", "{uci} {san}", "{uci}: {san}", "- {uci} {san}", "{san} {uci}", "{uci} ({san})"]
ORDERS = ["board.legal", "random.sample(board.legal, len(board.legal))", "sorted(board.legal, key=lambda row: row[1])"]


def _replace(source: str, old: str, new: str) -> str:
    if old not in source:
        raise ValueError(f"the harness has no {old!r} to vary: bring demos_chess.py up to date with it")
    return source.replace(old, new)


def _variant(draw: random.Random) -> Harness:
    """A shipped harness with constants, texts, row format and order drawn at random."""
    name = draw.choice(["h0", "strong"])
    source = (SEEDS / f"chess_{name}.py").read_text()
    values: dict[str, object] = {
        "SYSTEM": draw.choice(SYSTEMS),
        "FORMAT": draw.choice(FORMATS),
        "ILLEGAL": draw.choice(ILLEGALS),
        "ROWS": draw.choice([8, 12, 14, 14, 14, 18, 24, 40] if name == "h0" else [14, 24, 60, 60]),
    }
    for key, value in values.items():
        source, n = re.subn(rf"^{key} = .*$", lambda _, k=key, v=value: f"{k} = {v!r}", source, flags=re.MULTILINE)
        if n != 1:
            raise ValueError(f"chess_{name}.py has no constant {key}: bring demos_chess.py up to date with it")
    source = _replace(source, "{uci} {san}", draw.choice(ROWS))
    source = _replace(source, "board.legal[:ROWS]", f"({draw.choice(ORDERS)})[:ROWS]")
    if draw.random() < 0.3:
        less = draw.choice(["{board.fen}\\n", "{board.board}\\n", ""])
        source = _replace(source, "{board.fen}\\n{board.board}\\n", less)
    return Harness(f"import random\n{source}", "demonstration", trusted=True)


class Positions:
    """Mates in one and in two, without end: `draw` gives a FEN and its solution."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        rows = shipped()
        self._shipped = {position_key(row.fen) for row in rows if row.split in SPLITS}
        self._ones = [row.fen for row in rows if row.split == "demo" and row.gold.mate_in == 1]
        self._twos = [(row.fen, row.gold) for row in rows if row.split == "demo" and row.gold.mate_in == 2]

    def draw(self) -> tuple[str, ChessGold]:
        """A position with the side to move that mates."""
        if self._draw.random() < MATE_IN_TWO:
            return self._turned(*self._draw.choice(self._twos))
        at = self._draw.randrange(len(self._ones))
        if self._draw.random() < FRESH and (fresh := self._fresh(self._ones[at])):
            if len(self._ones) < POOL:
                self._ones.append(fresh)
            else:
                self._ones[at] = fresh
            return fresh, ChessGold([], 1)
        return self._ones[at], ChessGold([], 1)

    def _fresh(self, fen: str) -> str | None:
        """The position with one of its men elsewhere and the board perhaps turned, if it still has a mate in one."""
        fen, _ = self._turned(fen, ChessGold([], 1))
        for _ in range(TRIES):
            board = chess.Board(fen)
            man = board.remove_piece_at(self._draw.choice(list(board.piece_map())))
            board.set_piece_at(self._draw.choice([s for s in chess.SQUARES if not board.piece_at(s)]), man)
            if not board.is_valid() or board.legal_moves.count() not in LEGAL:
                continue
            found = board.fen()
            if 1 <= sum(1 for _ in mating_moves(board)) <= MATES and position_key(found) not in self._shipped:
                return found
        return None

    def _turned(self, fen: str, gold: ChessGold) -> tuple[str, ChessGold]:
        """The same puzzle mirrored left to right, with colours exchanged, both or neither."""
        board, line = chess.Board(fen), [chess.Move.from_uci(uci) for uci in gold.line]
        if self._draw.random() < 0.5:
            board = board.transform(chess.flip_horizontal)
            line = [chess.Move(m.from_square ^ 7, m.to_square ^ 7, m.promotion) for m in line]
        if self._draw.random() < 0.5:
            board = board.mirror()
            line = [chess.Move(m.from_square ^ 56, m.to_square ^ 56, m.promotion) for m in line]
        return board.fen(), ChessGold([m.uci() for m in line], gold.mate_in)


class Expert:
    """Plays the right move when the prompt shows it, else a check that it shows, else any; with mistakes if `noise`."""

    def __init__(self, world: ChessWorld, draw: random.Random, noise: bool) -> None:
        self._line, self._draw, self._noise = world.line, draw, noise

    def __call__(self, messages: list[Message]) -> str:
        """The next reply."""
        shown = next(m["content"] for m in reversed(messages) if "Legal moves" in m["content"])
        visible = set(re.findall(r"\b[a-h][1-8][a-h][1-8][qrbn]?\b", shown))
        rows = [row for row in look(self._line.board).legal if row[0] in visible]
        move = self._choose(rows)
        if self._slips(RANDOM):
            move = self._draw.choice(rows)[0]
        if self._slips(ILLEGAL):
            move = f"{move[:2]}{self._draw.choice(chess.SQUARE_NAMES)}"
        if self._slips(TWO_TAGS):
            return f"<move>{self._draw.choice(rows)[0]}</move> <move>{move}</move>"
        if self._slips(NO_FORMAT):
            return self._draw.choice([move, f"<move>{move}", f"{move}</move>", f"<move>{move}<move>"])
        return f"<move>{move}</move>"

    def _choose(self, rows: list[tuple[str, str]]) -> str:
        line, played = self._line.gold.line, self._line.played
        known = line[len(played)] if line[: len(played)] == played and len(played) < len(line) else None
        if known in (uci for uci, _ in rows):
            return str(known)
        best = [r for r in rows if r[1][-1] == "#"] or [r for r in rows if r[1][-1] == "+"] or rows
        return self._draw.choice(best)[0]

    def _slips(self, share: float) -> bool:
        return self._noise and self._draw.random() < share


def play(harness: Harness, task: Task, draw: random.Random, noise: bool) -> Iterator[list[Message]]:
    """The conversations of one episode: one, or one for each context that the harness began."""
    world = ChessWorld(task)
    expert = Expert(world, draw, noise)
    session = InProcessSession(harness, task.shown, Toolbox(world.tools), draw.randrange(2**31))
    conversation: list[Message] = []
    outcome = session.resume(None)
    while isinstance(outcome, Ask) and not world.over:
        if conversation and outcome.messages[: len(conversation)] != conversation:
            yield conversation
        reply = ReplyView(expert(outcome.messages))
        conversation = [*outcome.messages, reply.message]
        outcome = session.resume(reply)
    yield conversation


def demos(seed: int, noise: bool) -> Iterator[list[Message]]:
    """Conversations without end, the same for the same arguments."""
    draw = random.Random(f"chess demos {seed}")
    harnesses = [_variant(draw) for _ in range(64)]
    positions = Positions(draw)
    while True:
        task = puzzle_task("demo", *positions.draw(), "demo")
        yield from play(draw.choice(harnesses), task, draw, noise and draw.random() < NOISY)
