"""The command line: `whale run`, `train`, `search`, `eval`, `report`, and the others that `whale --help` lists.

A user's mistake is one line on stderr and exit code 2; Ctrl-C and SIGTERM are one line and exit code 128 and
the signal's number; a bug is a traceback. This module imports next to nothing, so that there is no moment after the
interpreter's own start at which Ctrl-C meets nobody.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

#: What the system says of a place that the user chose, and that only the user can mend.
PLACES = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ENOTDIR, errno.ELOOP, errno.EIO)
FULL = (errno.ENOSPC, errno.EDQUOT)
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """A signal has asked this process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        with _heeding():
            return _run(argv)
    except KeyboardInterrupt as stop:
        number = stop.number if isinstance(stop, Stopped) else signal.SIGINT
        serves = argv[:1] == ["serve-retrieval"]
        return _fail("stopped" if serves else "stopped; the same command goes on from here", 128 + number)


def _run(argv: Sequence[str]) -> int:
    from whale_envs.errors import UserError

    for argument in argv:
        try:
            argument.encode()
        except UnicodeEncodeError:  # neither our files nor a terminal could name it
            return _fail(f"{argument!r} is no text in UTF-8: rename the file or folder", 2)
    try:
        from whale_train import arguments

        code = arguments.execute(arguments.parse(argv))
        print(end="", flush=True)  # here, and not as the interpreter ends, where nobody would say what went wrong
        return code
    except UserError as error:
        return _fail(str(error), 2)
    except BrokenPipeError:  # somebody's `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 128 + signal.SIGPIPE
    except OSError as error:
        where = error.filename if isinstance(error.filename, str) else None
        if error.errno in FULL:
            return _fail(
                f"no space left{f' for {where}' if where else ''}: free some, then run the same command again", 2
            )
        if error.errno in PLACES and where:
            return _fail(f"cannot use {where}: {error.strerror}; give another place, or see who may use it", 2)
        raise


@contextmanager
def _heeding() -> Iterator[None]:
    """Raise `Stopped` at a signal that asks to end, unless whoever started us has it ignored."""

    def stop(number: int, frame: FrameType | None) -> None:
        for other in heeded:  # a second signal ends the process wherever it is
            signal.signal(other, signal.SIG_DFL)
        raise Stopped(number)

    here = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in SIGNALS if here}
    heeded = [number for number, handler in before.items() if handler != signal.SIG_IGN]
    for number in heeded:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in heeded:
            if signal.getsignal(number) is stop:
                signal.signal(number, before[number])


def _fail(line: str, code: int) -> int:
    print(f"whale: {' '.join(line.split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
