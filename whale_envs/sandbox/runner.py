"""Runs a job's source the way an interpreter runs a person's file, in a process that is confined already.

The value of the last expression is printed as at the prompt. `random` starts from the same seed in every job and
session, so that the same source prints the same.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import gc
import linecache
import os
import random
import sys
import threading
import traceback
from collections.abc import Callable
from types import ModuleType, TracebackType

OK, ERROR, MEMORY = 0, 1, 3  # exit codes


def run(source_fd: int) -> int:
    """Run the source that can be read from a descriptor; the exit code."""
    stdout, stderr = sys.stdout, sys.stderr
    with open(source_fd, "rb") as file:
        source = file.read()
    code = _outcome(source, "main.py", _main())
    for finish in (threading._shutdown, atexit._run_exitfuncs, stdout.flush, stderr.flush):  # type: ignore[attr-defined]
        code = _finish(finish, code)
    return code


def serve(cells_fd: int) -> int:
    """Run the cells that come over a socket, each as 4 bytes of length and its source; 0 when that is closed.

    They share one namespace. Each is answered with the exit code that it would have had, a byte, once all that it
    printed is written.
    """
    stdout, stderr = sys.stdout, sys.stderr
    main, number = _main(), 0
    with open(cells_fd, "rb") as cells:
        while length := cells.read(4):
            source = cells.read(int.from_bytes(length, "big"))
            number += 1
            code = _outcome(source, f"cell {number}", main)
            for flush in (stdout.flush, stderr.flush):
                code = _finish(flush, code)
            os.write(cells_fd, bytes([code]))
    return OK


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
