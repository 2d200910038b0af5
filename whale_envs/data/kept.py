"""What was read from files is shared by all who ask for it, for as long as the files stay as they were; and where on
disk lies what need not be made again."""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from whale_envs.errors import UserError

T = TypeVar("T")
#: For each file: its path, inode, size in bytes, and when it was last changed, in nanoseconds.
State = tuple[tuple[str, int, int, int], ...]


def state(path: Path) -> State:
    """What tells a file, or the files of a folder, from what was there before; () where there is nothing to read.

    Raises `UserError` for what can be no path.
    """
    try:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        found = [(os.path.abspath(file), file.stat()) for file in files]
    except ValueError as error:
        raise UserError(f"{str(path)!r:.80} is no path: {error}") from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise UserError(f"{str(path)!r:.80} is no path: {error.strerror}") from None
        return ()  # whoever reads it says what is wrong
    return tuple((name, s.st_ino, s.st_size, s.st_ctime_ns) for name, s in found)


def kept(read: Callable[..., T]) -> Callable[..., T]:
    """Keep the last results of a function that reads the path which it is given first, `~` written out.

    Files that were changed since are read again, and a relative path is another one in another folder.
    """

    @functools.lru_cache(maxsize=8)
    def once(path: Path, found: State, *args: Any) -> T:
        return read(path, *args)

    @functools.wraps(read)
    def reading(path: str | Path, *args: Any) -> T:
        path = home(path)
        return once(path, state(path), *args)

    return reading


def cache_folder(name: str) -> Path:
    """A folder of the user's cache, for what may be made again: in $WHALE_CACHE, $XDG_CACHE_HOME/whale or
    ~/.cache/whale, the first that is set."""
    elsewhere = os.environ.get("XDG_CACHE_HOME") or home("~/.cache")
    return Path(os.environ.get("WHALE_CACHE") or Path(elsewhere, "whale"), name)


def home(path: str | Path) -> Path:
    """A path with a leading `~` written out, where that names a home; `Path.expanduser` raises where it does not."""
    return Path(os.path.expanduser(path))
