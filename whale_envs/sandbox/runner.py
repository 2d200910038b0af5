"""Runs a job's source the way an interpreter runs a person's file, in a process that is confined already.

The value of the last expression is printed as at the prompt. `random` starts from the same seed in every job, so that
the same source prints the same.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import linecache
import os
import random
import sys
import threading
import traceback
from types import ModuleType, TracebackType

FILENAME = "main.py"
OK, ERROR, MEMORY = 0, 1, 3  # exit codes


def run(source_fd: int) -> int:
    """Run the source that can be read from a descriptor; the exit code."""
    stdout, stderr = sys.stdout, sys.stderr
    with open(source_fd, "rb") as file:
        source = file.read()
    random.seed(0)
    code = _outcome(source)
    for finish in (threading._shutdown, atexit._run_exitfuncs, stdout.flush, stderr.flush):  # type: ignore[attr-defined]
        try:
            finish()
        except BaseException:
            code = code or ERROR
    return code


def _outcome(source: bytes) -> int:
    try:
        _execute(source)
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


def _execute(source: bytes) -> None:
    text = source.decode("utf-8", "replace")
    # without a time stamp, linecache never looks for the file
    linecache.cache[FILENAME] = (len(text), None, text.splitlines(keepends=True), FILENAME)
    main = ModuleType("__main__")
    sys.modules["__main__"] = main
    tree = ast.parse(source, FILENAME)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, FILENAME, "exec", dont_inherit=True), main.__dict__)
    if last is not None:
        exec(compile(ast.Interactive([last]), FILENAME, "single", dont_inherit=True), main.__dict__)


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
