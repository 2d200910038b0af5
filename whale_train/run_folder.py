"""A run folder: one configuration, one process at a time, taken up again by the same command.

run.json       written first: kind, command, configuration, versions, hashes, seed, sandbox tier
result.json    written last, for programs
.lock          held while a process works in the folder
"""

from __future__ import annotations

import fcntl
import platform
import shlex
import sys
import time
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

import msgspec

import whale_envs
from whale_envs.episode import read_json, write_atomic
from whale_envs.errors import UserError
from whale_train.options import Job

#: Third parties whose version can change a result.
PACKAGES = ("torch", "transformers", "trl", "gymnasium", "numpy", "chess", "bm25s", "math-verify")


class RunInfo(msgspec.Struct, frozen=True):
    """`run.json`. `hashes` holds those of the harness, the data and the weights that the run started from."""

    kind: str
    command: str
    config: dict[str, Any]
    versions: dict[str, str]
    hashes: dict[str, str]
    seed: int
    tier: str


class RunFolder:
    """A folder that this process alone works in, from `__enter__` to `__exit__`.

    Args:
        job: the configuration; its `folder` is made if it is not there.
        tier: the sandbox tier that the run has.

    Raises `UserError` when another configuration or another process has the folder, when it holds other files, and
    when it cannot be written. That is known before the weights are, which take time to load: see `starts_from`.
    """

    def __init__(self, job: Job, tier: str) -> None:
        self.path, self.job = job.folder, job
        self.info = RunInfo(job.kind, command_line(), job.identity(), versions(), job.hashes(), job.seed, tier)
        self._lock: TextIO | None = None
        self._began = 0.0

    def __enter__(self) -> RunFolder:
        self._began = time.monotonic()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = lock = locked(self.path, ", or give another --out")
        except OSError as error:
            raise UserError(f"cannot write to {error.filename}: {error.strerror}; give another --out") from None
        try:
            self._claim()
        except BaseException:
            lock.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lock is not None:
            self._lock.close()

    def starts_from(self, weights: str) -> None:
        """Note the hash of the weights that the run starts from. Raises `UserError` when the folder has others."""
        self.info = msgspec.structs.replace(self.info, hashes={**self.info.hashes, "weights": weights})
        self._claim()

    def _claim(self) -> None:
        """Write `run.json`, unless it is there and says the same of what is known so far."""
        path = self.path / "run.json"
        others = sorted(p.name for p in self.path.iterdir() if not p.name.startswith(".") and p != path)
        if path.exists():
            there = read_run(self.path)
            changed = _changes(there, self.info)
            if changed and others:
                raise UserError(f"{self.path} holds another run ({changed}): give another --out, or remove the folder")
            if not changed and self.info.hashes.keys() <= there.hashes.keys():
                return  # else nothing was played yet: a mended harness may take the folder
        elif others:
            raise UserError(f"{self.path} is no run folder (it holds {others[0]}): give a new or empty folder to --out")
        write_atomic(path, msgspec.json.format(msgspec.json.encode(self.info)) + b"\n")

    @property
    def finished(self) -> bool:
        """Whether the run has ended; its command then says its result again."""
        return (self.path / "result.json").exists()

    def seconds(self) -> float:
        """What the run took: the process that ended it, of several where it was killed. The same command again, which
        finds all of it done, changes nothing of that."""
        path = self.path / "result.json"
        before = read_json(path, dict[str, Any]).get("seconds") if path.exists() else None
        return float(before) if before is not None else round(time.monotonic() - self._began, 1)

    def write_result(self, **fields: Any) -> dict[str, Any]:
        """Write `result.json`: `fields`, then the command, versions, hashes, seed and tier. Returns it."""
        info = {name: getattr(self.info, name) for name in ("command", "versions", "hashes", "seed", "tier")}
        result = {**fields, **info}
        write_atomic(self.path / "result.json", msgspec.json.format(msgspec.json.encode(result)) + b"\n")
        return result


def locked(folder: Path, advice: str = "") -> TextIO:
    """The lock of a folder, which this process holds until it is closed.

    Raises `UserError` where another process has it, which says to wait, and the `advice` besides.
    """
    lock = (folder / ".lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise UserError(f"another process works in {folder}: wait for it{advice}") from None
    return lock


def read_run(folder: Path) -> RunInfo:
    """`run.json` of a run folder. Raises `UserError` when it is not there or malformed."""
    path = folder / "run.json"
    try:
        info = msgspec.json.decode(path.read_bytes(), type=RunInfo)
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{folder} is no run folder: expected one that `whale run`, train or search made") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; see who may read the folder") from None
    except msgspec.DecodeError as error:
        raise UserError(f"{path} is malformed ({error}): remove the folder and run again") from None
    if "domain" not in info.config or "harness" not in info.hashes:
        raise UserError(f"{path} is malformed (no domain, or no hash of the harness): remove the folder and run again")
    return info


def command_line() -> str:
    """The command that this process was started with, as one would type it."""
    script, module = Path(sys.argv[0]), getattr(sys.modules["__main__"], "__spec__", None)
    if script.name == "whale":
        start = ["whale"]
    elif module is not None:
        start = ["python", "-m", module.name]
    else:  # where a script lies on this machine is nobody's business
        start = ["python", *filter(None, [script.name if script.is_absolute() else sys.argv[0]])]
    return shlex.join([*start, *sys.argv[1:]])


def versions() -> dict[str, str]:
    """Versions of this package, Python and what can change a result."""
    found = {"whale-rl": whale_envs.__version__, "python": platform.python_version()}
    return found | {name: metadata.version(name) for name in PACKAGES}


def _changes(there: RunInfo, here: RunInfo) -> str:
    """What differs, but for hashes that one of the two does not know yet."""
    if there.kind != here.kind:
        return f"of whale {there.kind}, not {here.kind}"
    names = sorted(there.config.keys() | here.config.keys())
    pairs = [(name, there.config.get(name), here.config.get(name)) for name in names]
    pairs += [
        (name, there.hashes[name], here.hashes[name]) for name in sorted(there.hashes.keys() & here.hashes.keys())
    ]
    return ", ".join(f"{name} {old!r} there, {new!r} here" for name, old, new in pairs if old != new)
