"""The code tool: run Python that a model wrote, and see what an interpreter would show."""

from __future__ import annotations

import re

from whale_envs.errors import ToolUseError
from whale_envs.harness.helpers import ExecResult
from whale_envs.sandbox import Pool, Session

MAX_SECONDS, MAX_MEMORY_MB, MAX_CODE_BYTES = 300.0, 8192, 1 << 20

#: Imported before the fork: what short programs use most, and whatever is not pure Python. The pure Python rest of the
#: standard library is importable too.
_STANDARD = (
    "math cmath decimal fractions random statistics itertools functools collections operator heapq bisect array re "
    "string textwrap json datetime time calendar copy pprint enum dataclasses typing numbers contextlib io "
    "threading unicodedata struct hashlib base64 zlib queue select socket ctypes resource subprocess "
    "concurrent.futures csv pickle ast inspect types abc traceback warnings secrets uuid _uuid _queue _lsprof cProfile "
    "logging encodings.idna encodings.ascii encodings.latin_1 encodings.utf_16 timeit zoneinfo"
).split()
#: With what sympy imports inside functions (solve, integrate, lambdify), which would cost a job up to a second.
_SCIENCE = (
    _STANDARD
    + (
        "numpy numpy.linalg numpy.fft numpy.random numpy.polynomial numpy.f2py numpy.testing numpy.char numpy.rec "
        "numpy.strings numpy.ma numpy.typing numpy.ctypeslib numpy.core sympy sympy.assumptions.wrapper "
        "sympy.combinatorics sympy.physics.units.systems sympy.sets.setexpr sympy.sets.handlers.functions "
        "sympy.sets.handlers.issubset sympy.tensor.tensor sympy.integrals.heurisch sympy.integrals.risch "
        "sympy.integrals.manualintegrate sympy.codegen.ast sympy.stats sympy.abc"
    ).split()
)
_PACKAGES = ("numpy", "sympy", "mpmath")
_NAMED = re.compile(rf"\b({'|'.join(_PACKAGES)})\b")

#: Two zygotes, since a fork with sympy loaded takes longer; each starts when first needed. Code that names none of
#: the packages cannot import them.
_plain = Pool(_STANDARD)
_science = Pool(_SCIENCE, _PACKAGES, huge_pages=True)


def python_session() -> Session:
    """A session for `run_python`, whose process starts with its first program.

    For one thread at a time; `close` it, or use it in a `with` statement.
    """
    return Session(_science)


def run_python(code: str, timeout: float = 30, memory_mb: int = 1024, session: Session | None = None) -> ExecResult:
    """Run a program in an interpreter that can compute and print, and nothing else.

    The standard library, numpy, sympy and mpmath can be imported. There are no files, no processes, no network. The
    value of the last expression is printed as at the prompt. Without a session each call starts from nothing, with
    `random` and `numpy.random` in the same state, so that the same code prints the same.

    Args:
        code: Python source, at most 1 MiB.
        timeout: seconds of wall-clock time, up to 300, once the program has started.
        memory_mb: MiB that it may allocate, up to 8192. For all programs of a session together, as its first one says.
        session: what `python_session` made: names, imports and random state stay from one program to the next. An
            exception leaves them; a program that is stopped or ends the process takes them along, and its result's
            `stderr` says so.

    Returns:
        Output and errors as an interpreter shows them, at most 64 KiB each, and the status: "ok"; "error" (an
        exception, or `sys.exit` with other than 0); "timeout"; "memory"; "output" (stopped, since it wrote too
        much); "killed" (a crash of the interpreter).

    Raises:
        ToolUseError: an argument is of another kind or out of its range.
        UserError: this machine offers no isolation (see `whale_envs.sandbox.tier`).
    """
    if not isinstance(code, str) or len(code) > MAX_CODE_BYTES:
        raise ToolUseError(f"run_python takes source code of at most {MAX_CODE_BYTES} characters, not {_brief(code)}")
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= MAX_SECONDS:
        raise ToolUseError(f"run_python takes a timeout of up to {MAX_SECONDS:g} seconds, not {_brief(timeout)}")
    if isinstance(memory_mb, bool) or not isinstance(memory_mb, int) or not 0 < memory_mb <= MAX_MEMORY_MB:
        raise ToolUseError(f"run_python takes memory_mb of up to {MAX_MEMORY_MB}, not {_brief(memory_mb)}")
    if session is not None:
        return session.run(code, float(timeout), memory_mb)
    pool = _science if _NAMED.search(code) else _plain
    return pool.run(code, float(timeout), memory_mb)


def _brief(value: object) -> str:
    return f"{type(value).__name__} of length {len(value)}" if isinstance(value, str | bytes) else repr(value)[:80]
