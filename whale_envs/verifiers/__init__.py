"""Verifiers: pure functions from an answer and its gold to a `Verdict`, and the same as reward functions for TRL."""

from whale_envs.verifiers.chess_line import ChessGold, verify_line
from whale_envs.verifiers.exact_match import exact_match, f1, sub_em
from whale_envs.verifiers.judge import Judge, load_judge
from whale_envs.verifiers.math_answer import integer_match
from whale_envs.verifiers.math_equivalence import math_equivalent
from whale_envs.verifiers.rewards import (
    chess_line_reward,
    exact_match_reward,
    f1_reward,
    integer_reward,
    math_equivalent_reward,
    sub_em_reward,
)

__all__ = [
    "ChessGold",
    "Judge",
    "chess_line_reward",
    "exact_match",
    "exact_match_reward",
    "f1",
    "f1_reward",
    "integer_match",
    "integer_reward",
    "load_judge",
    "math_equivalent",
    "math_equivalent_reward",
    "sub_em",
    "sub_em_reward",
    "verify_line",
]
