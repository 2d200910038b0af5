"""The payload of the code tool's zygotes: runs a job's source the way an interpreter runs a person's file.

The value of the last expression is printed as at the prompt. `random` starts from the same seed in every job and
session, so that the same source prints the same.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import gc
import importlib
import io
import linecache
import os
import random
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from types import ModuleType, TracebackType

from whale_envs.sandbox.archive import Archive

OK, ERROR, MEMORY = 0, 1, 3  # exit codes


class Payload:
    """See `whale_envs.sandbox.zygote.Payload`, and `whale_envs.sandbox.pool.Pool` for the arguments."""

    outlives = False

    def __init__(self, preload: Sequence[str], packages: Sequence[str], prepare: str) -> None:
        for name in preload:
            importlib.import_module(name)
        exec(compile(prepare, "prepare.py", "exec"), {})
        if "numpy.random" in sys.modules:
            sys.modules["numpy.random"].seed(0)  # as `_main` does with `random`
        self.finders = [Archive(packages)]
        for name in [name for name in sys.modules if name.partition(".")[0] == "whale_envs"]:
            del sys.modules[name]  # not for jobs
        assert isinstance(sys.stdout, io.TextIOWrapper)
        sys.stdout.reconfigure(line_buffering=True)  # what was printed before a time limit is kept

    def specialise(self) -> None:
        """Jobs are all of one kind."""

    def live(self, fd: int, request: dict[str, bool]) -> int:
        """Run the program, or the cells, that come over a socket; the exit code."""
        with open(fd, "rb") as cells:
            if request["session"]:
                return serve(cells)
            source = _next(cells)
        return OK if source is None else run(source)


def run(source: bytes) -> int:
    """Run a program; the exit code."""
    stdout, stderr = sys.stdout, sys.stderr
    code = _outcome(source, "main.py", _main())
    for finish in (threading._shutdown, atexit._run_exitfuncs, stdout.flush, stderr.flush):  # type: ignore[attr-defined]
        code = _finish(finish, code)
    return code


def serve(cells: io.BufferedReader) -> int:
    """Run the cells that come over a socket; 0 when that is closed.

    They share one namespace. Each is answered with the exit code that it would have had, a byte, once all that it
    printed is written.
    """
    stdout, stderr = sys.stdout, sys.stderr
    main, number, answers = _main(), 0, cells.fileno()
    while (source := _next(cells)) is not None:
        number += 1
        code = _outcome(source, f"cell {number}", main)
        for flush in (stdout.flush, stderr.flush):
            code = _finish(flush, code)
        os.write(answers, bytes([code]))
    return OK


def _next(cells: io.BufferedReader) -> bytes | None:
    """A source, which comes after its length in 4 bytes; None at the end."""
    length = cells.read(4)
    return cells.read(int.from_bytes(length, "big")) if length else None


def _main() -> ModuleType:
    """What the source is to find as `__main__`."""
    random.seed(0)
    gc.enable()  # the zygote has frozen what was there before: only the job's own objects are looked at
    main = ModuleType("__main__")
    sys.modules["__main__"] = main
    return main


def _finish(function: Callable[[], object], code: int) -> int:
    try:
        function()
    except BaseException:
        return code or ERROR
    return code


def _outcome(source: bytes, name: str, main: ModuleType) -> int:
    try:
        _execute(source, name, main)
    except SystemExit as stop:
        if stop.code is None or stop.code == 0:
            return OK
        if not isinstance(stop.code, int):
            _show(str(stop.code) + "\n")
        return ERROR
    except MemoryError as error:
        _show(_format(error) or "MemoryError\n")
        return MEMORY
    except BaseException as error:
        _show(_format(error) or f"{type(error).__name__}\n")
        return ERROR
    return OK


def _execute(source: bytes, name: str, main: ModuleType) -> None:
    text = source.decode("utf-8", "replace")
    # without a time stamp, linecache never looks for the file
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    tree = ast.parse(source, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec", dont_inherit=True), main.__dict__)
    if last is not None:
        exec(compile(ast.Interactive([last]), name, "single", dont_inherit=True), main.__dict__)


def _format(error: BaseException) -> str:
    """The traceback without this file's frames; nothing if there is no memory left for it, or the error is hostile."""
    try:
        return "".join(traceback.format_exception(type(error), error, _own_frames(error.__traceback__)))
    except BaseException:
        return ""


def _own_frames(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def _show(text: str) -> None:
    try:
        sys.__stderr__.flush()  # type: ignore[union-attr]
    except BaseException:  # closed by the job
        return
    with contextlib.suppress(OSError):  # nobody reads any more
        os.write(2, text.encode("utf-8", "backslashreplace"))
