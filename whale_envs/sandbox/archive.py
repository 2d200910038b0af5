"""Imports without a file system: the pure Python modules of chosen packages, kept as byte code in shared memory.

A confined process opens no files, but sympy imports from itself inside functions, and a job may import any part of
the standard library. The zygote reads the byte code once into a memory file that its children share.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import marshal
import mmap
import os
import struct
import sysconfig
from collections.abc import Iterator, Sequence
from importlib.abc import InspectLoader, MetaPathFinder
from pathlib import Path
from types import CodeType, ModuleType

#: Parts of packages that no job needs.
SKIPPED = frozenset(
    "test tests benchmarks conftest site-packages idlelib tkinter turtledemo lib2to3 ensurepip __pycache__ __main__ "
    "pydoc_data venv".split()
)


class Archive(MetaPathFinder, InspectLoader):
    """Finds and loads the modules of the standard library and of `packages` from memory."""

    def __init__(self, packages: Sequence[str]) -> None:
        self._where: dict[str, tuple[int, int, bool, str]] = {}  # module: offset, length, whether a package, its file
        fd = os.memfd_create("archive")
        with open(fd, "wb", closefd=False) as file:
            for name, path, is_package in _modules(packages):
                code = _byte_code(path)
                self._where[name] = (file.tell(), len(code), is_package, str(path))
                file.write(code)
        # MAP_SHARED: a fork copies no page table for it. By a descriptor that cannot write, or a child could make the
        # mapping writable (mprotect) and change what all jobs after it import.
        reading = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        self._bytes = mmap.mmap(reading, 0, prot=mmap.PROT_READ)
        os.close(reading)
        os.close(fd)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of a module in the archive, None for another."""
        if fullname not in self._where:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=self._where[fullname][2])

    def get_code(self, fullname: str) -> CodeType:
        """The module's code. It names the file that it was found as, wherever it was compiled."""
        offset, length, _, path = self._where[fullname]
        code: CodeType = marshal.loads(self._bytes[offset : offset + length])
        return code if code.co_filename == path else _named(code, path)

    def get_source(self, fullname: str) -> None:
        """No source is kept."""

    def is_package(self, fullname: str) -> bool:
        """Whether the module is a package."""
        return self._where[fullname][2]


def _modules(packages: Sequence[str]) -> Iterator[tuple[str, Path, bool]]:
    roots = [("", Path(sysconfig.get_path("stdlib")))]
    for name in packages:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            roots.append((name + ".", Path(spec.submodule_search_locations[0])))
            yield name, roots[-1][1] / "__init__.py", True
    for prefix, root in roots:
        yield from _below(prefix, root)


def _below(prefix: str, folder: Path) -> Iterator[tuple[str, Path, bool]]:
    for entry in os.scandir(folder):
        stem, suffix = os.path.splitext(entry.name)
        readable = os.access(entry.path, os.R_OK, effective_ids=True)  # Debian has links into /etc that are not
        if stem in SKIPPED or stem == "__init__" or not readable:
            continue
        if suffix == ".py":
            yield prefix + stem, Path(entry.path), False
        elif not suffix and os.path.isfile(os.path.join(entry.path, "__init__.py")):
            yield prefix + stem, Path(entry.path, "__init__.py"), True
            yield from _below(f"{prefix}{stem}.", Path(entry.path))


def _named(code: CodeType, path: str) -> CodeType:
    inner = (_named(value, path) if isinstance(value, CodeType) else value for value in code.co_consts)
    return code.replace(co_filename=path, co_consts=tuple(inner))


def _byte_code(path: Path) -> bytes:
    """The module's marshalled code: the interpreter's cached file if it is up to date, else compiled here."""
    try:
        data = Path(importlib.util.cache_from_source(str(path))).read_bytes()
        stat = path.stat()
        stamp = struct.pack("<III", 0, int(stat.st_mtime) & 0xFFFFFFFF, stat.st_size & 0xFFFFFFFF)
        if data[:16] == importlib.util.MAGIC_NUMBER + stamp:
            return data[16:]
    except OSError:
        pass
    try:
        return marshal.dumps(compile(path.read_bytes(), str(path), "exec", dont_inherit=True))
    except SyntaxError:  # a file for another version of Python: importing it says so
        return marshal.dumps(compile(f"raise ImportError('cannot compile {path.name}')", path.name, "exec"))
