r"""Equivalence of mathematical expressions, as math-verify judges it: `1/2`, `0.5` and `\frac{1}{2}` are one answer.

Model-written LaTeX can keep sympy busy for ever (a tower of powers, a factorial of a factorial), and math-verify's own
time limit is SIGALRM, which works on the main thread alone. Here it runs in sandboxed worker processes
(`whale_envs.sandbox`), one for each processor, that are killed at a wall-clock limit, whatever thread asked; the next
question starts another. A worker lives on from question to question, since its parser gets faster with what it meets.

Two integers are compared as `integer_match` does, and equal texts are equal: neither needs a worker.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from whale_envs.episode import Verdict
from whale_envs.harness.helpers import ExecResult
from whale_envs.processors import processors
from whale_envs.sandbox import Pool, Session
from whale_envs.verifiers.math_answer import integer

#: Seconds of wall clock for one comparison; most take hundredths of one.
TIMEOUT = 10.0
#: MiB that a worker may allocate.
MEMORY_MB = 1024
#: The longest answer that is compared, in characters.
MAX_ANSWER = 1000
#: Comparisons after which a worker is replaced: it keeps the source of each.
LIFE = 500
#: Seconds in which a worker has to be ready, on a machine that is busy with other things.
_START_SECONDS = 60.0

#: What a worker begins with. LaTeX alone is read, since math-verify's reader of plain expressions evaluates them as
#: Python.
_PROGRAM = r"""
import logging
from math_verify import LatexExtractionConfig, parse, verify

logging.disable(logging.CRITICAL)  # it warns that its own time limit is off
_LATEX = (LatexExtractionConfig(boxed_match_priority=0),)

def read(latex):
    return parse("\\boxed{" + latex + "}", _LATEX, parsing_timeout=None)

def equivalent(gold, answer):
    return verify(read(gold), read(answer), timeout_seconds=None)
"""
#: What workers are forked from has read these: a parser that has met a construct before takes a hundredth of the time.
_MET = (
    r"\frac{1}{2}", r"-3\sqrt{13}", r"(3, \frac{\pi}{2})", r"x^2 + 2x - 1", r"[0, 1)", r"x = 5", r"1.5", r"6 - 5i",
    r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"(x-1)(x+1)", r"\text{east}", r"90^\circ", r"1, 2, 3", r"\frac43",
    r"x \in [-2, 7]", r"1 \pm \sqrt{19}", r"2516_8", r"\sin x", r"\log_2 3", r"5!", r"\binom{4}{2}",
)  # fmt: skip


def math_equivalent(answer: Any, gold: str, timeout: float = TIMEOUT) -> Verdict:
    r"""1 when `answer` equals `gold` in the judgement of math-verify, else 0.

    Both are LaTeX, the content of `\boxed{}`; `answer` is None when there is none. An answer that cannot be compared
    within `timeout` seconds, or that crashes the comparison, is wrong. Call it from any thread.

    Raises `ValueError` for an empty gold, `UserError` where this machine offers no isolation.
    """
    if not gold.strip():
        raise ValueError("the gold is empty")
    if answer is None:
        return Verdict(0.0, "no answer")
    if not isinstance(answer, str):
        return Verdict(0.0, f"the answer is {type(answer).__name__}, not a string")
    given, wanted = integer(answer), integer(gold)
    if answer.strip() == gold.strip() or (given is not None and given == wanted):
        return Verdict(1.0, "right")
    if given is not None and wanted is not None:
        return Verdict(0.0, f"wrong: {given[:40]}")
    if not answer.strip() or len(answer) > MAX_ANSWER or not _balanced(answer):
        return Verdict(0.0, f"the answer is no expression: {answer[:40]!r}")
    status, said = _workers.ask(f"print(equivalent({gold!r}, {answer!r}))", timeout)
    if status == "ok":
        return Verdict(1.0, "equivalent") if said.strip() == "True" else Verdict(0.0, f"not equal: {answer[:40]!r}")
    return Verdict(0.0, f"comparing {answer[:40]!r} was given up ({status})")


def _balanced(latex: str) -> bool:
    """Whether every brace closes one before it, so that a text cannot leave the box that it is put in."""
    depth = 0
    for sign in latex.replace("\\\\", "").replace("\\{", "").replace("\\}", ""):
        depth += {"{": 1, "}": -1}.get(sign, 0)
        if depth < 0:
            return False
    return depth == 0


class _Workers:
    """At most one worker for each processor; each answers one question at a time."""

    def __init__(self) -> None:
        self._pool = Pool(
            preload=("math_verify",),
            packages=("math_verify", "latex2sympy2_extended", "antlr4", "sympy", "mpmath"),
            huge_pages=True,
            prepare=f"{_PROGRAM}\nfor latex in {_MET!r}:\n    equivalent(latex, latex + '+1')\n",
        )
        self.forget()

    def forget(self) -> None:
        """Have no worker. In a forked copy of this process, they are the original's."""
        self._free: list[tuple[Session, int]] = []  # with the number of questions that each has answered
        self._turns = threading.Semaphore(processors())

    def ask(self, source: str, timeout: float) -> tuple[str, str]:
        """The status of a source's run in some worker, and what it printed.

        A worker may have been killed from outside, which is not the question's fault: it is asked once more.
        """
        with self._turns:
            result = self._run(source, timeout)
            if result.status == "killed":
                result = self._run(source, timeout)
        if result.status == "error":
            raise RuntimeError(f"a comparison failed in a way that math-verify does not catch: {result.stderr}")
        return result.status, result.stdout

    def _run(self, source: str, timeout: float) -> ExecResult:
        try:
            worker, age = self._free.pop()
        except IndexError:
            worker, age = self._started(), 0
        try:
            result = worker.run(source, timeout, MEMORY_MB)
        except BaseException:
            worker.close()
            raise
        if result.status == "ok" and age + 1 < LIFE:
            self._free.append((worker, age + 1))
        else:
            worker.close()
        return result

    def _started(self) -> Session:
        worker = Session(self._pool)
        result = worker.run(_PROGRAM, _START_SECONDS, MEMORY_MB)
        if result.status != "ok":
            worker.close()
            raise RuntimeError(f"math-verify's worker did not start ({result.status}): {result.stderr}")
        return worker


_workers = _Workers()
os.register_at_fork(after_in_child=_workers.forget)
