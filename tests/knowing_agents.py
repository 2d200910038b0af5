"""Policies that know the answers, for tests: they play each domain well, in formats that vary, through any harness."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import chess

from whale_envs import Domain, TaskSet
from whale_envs.verifiers.chess_line import ChessGold, forcing_moves
from whale_train.policies.base import Request
from whale_train.policies.scripted import ScriptedPolicy

_FEN = re.compile(r"\S+/\S+/\S+/\S+/\S+/\S+/\S+/\S+ [wb] \S+ \S+ \d+ \d+")


def knowing(domain: Domain, tasks: TaskSet) -> ScriptedPolicy:
    """A policy that knows the gold of these tasks; it finds its task by the text that it is shown."""
    say = {"search-qa": _search, "math": _math, "chess": _chess}[domain.name]
    return ScriptedPolicy(say(tasks), f"knowing {domain.name}")


def _shown(request: Request) -> str:
    return "\n".join(m["content"] for m in request.ask.messages)


def _search(tasks: TaskSet) -> Callable[[Request], str]:
    golds = {t.shown["question"]: t.gold[0] for t in tasks}

    def say(request: Request) -> str:
        shown, rng = _shown(request), random.Random(request.seed)
        question = next((q for q in golds if q in shown), "")
        answer = golds.get(question, "nobody knows")
        if len(request.ask.messages) < 4 and rng.random() < 0.5:
            return f"I look it up. <search>{question[12:-1]}</search>"
        return rng.choice(
            (
                f"<answer>{answer}</answer>",
                f"It is <answer> the {answer}. </answer> as the passage says",
                f"<answer>{answer.upper()}</answer>",
                f"Not <answer>x</answer> but\n<answer>\n{answer}\n</answer>",
            )
        )

    return say


def _math(tasks: TaskSet) -> Callable[[Request], str]:
    golds = {t.shown["question"]: t.gold for t in tasks}

    def say(request: Request) -> str:
        shown, rng = _shown(request), random.Random(request.seed)
        gold = next((g for q, g in golds.items() if q in shown), "0")
        if len(request.ask.messages) < 4 and rng.random() < 0.5:
            half = int(gold) // 2
            return rng.choice(
                (
                    f"<python>a = {half}\nprint(a + {int(gold) - half})</python>",
                    f"```python\n{half} + {int(gold) - half}\n```",
                )
            )
        return rng.choice(
            (
                f"So \\boxed{{{gold}}}",
                f"\\boxed{{{int(gold):,}}} it is",
                f"{gold}: \\boxed{{{gold}.0}}",
                f"<b>{gold}</b>",
            )
        )

    return say


def _chess(tasks: TaskSet) -> Callable[[Request], str]:
    golds = {t.shown["fen"]: t.gold for t in tasks}
    boards = {t.shown["board"]: t.shown["fen"] for t in tasks}

    def say(request: Request) -> str:
        shown, rng = request.ask.messages[-1]["content"], random.Random(request.seed)
        fen = _FEN.search(_shown(request))
        text = fen[0] if fen else next((f for b, f in boards.items() if b in _shown(request)), chess.STARTING_FEN)
        board = chess.Board(text)
        gold: ChessGold | None = golds.get(text)
        moves = [gold.line[0]] if gold else [m.uci() for n in (1, 2) for m in forcing_moves(board, n)]
        move = chess.Move.from_uci(moves[0]) if moves else next(iter(board.legal_moves))
        if rng.random() < 0.1 and "Not legal" not in shown:
            return "I do not know."
        name = rng.choice((move.uci(), board.san(move), board.san(move).rstrip("+#")))
        return rng.choice(
            (f"<move>{name}</move>", f"I like <move> {name} </move>", f"No: {name}.\n<move>{name}</move>")
        )

    return say
