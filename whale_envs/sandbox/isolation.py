"""Which layers this machine offers, found by trying them; what to do where too few are there.

A: bubblewrap + Landlock + seccomp + rlimits. B: without bubblewrap. C: seccomp + rlimits.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from whale_envs.errors import UserError
from whale_envs.sandbox import layers

#: Set by `allow_unsafe`; an environment variable, so that the processes of a training run inherit the decision.
UNSAFE_VARIABLE = "WHALE_UNSAFE"

#: What decides is that a process can confine itself and that the probes then fail, not what is installed. The canary
#: is a file that bubblewrap shows.
_TRIAL = (
    "import sys; sys.path.insert(0, sys.argv[1]); import layers, probes; "
    "layers.confine([1, 2], memory_mb=64, cpu_seconds=10); "
    "sys.exit(', '.join('a probe ' + p for p in probes.escapes(layers.__file__)) or print('confined'))"
)

#: The whole environment of a confined process. The fixed hash seed gives sets of strings one order in every run.
ENVIRONMENT = {
    "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
    "PYTHONIOENCODING": "utf-8:strict",
    "PYTHONDONTWRITEBYTECODE": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "LD_BIND_NOW": "1",  # names are looked up once, at the start, and not by each child for itself
    "MALLOC_ARENA_MAX": "1",  # each further arena would take 64 MB of the job's address space, for each thread
}
#: Where the packages are that a clean process imports. Python finds it by itself in an environment or a system
#: directory, and not where a user installed for himself (`-s`).
_NUMPY = importlib.util.find_spec("numpy")
assert _NUMPY is not None and _NUMPY.origin is not None
PACKAGES = Path(_NUMPY.origin).parent.parent
if not PACKAGES.is_relative_to(sys.prefix):
    ENVIRONMENT["PYTHONPATH"] = str(PACKAGES)


@dataclass(frozen=True)
class Isolation:
    """The layers in use.

    `letter` is "A", "B", "C", or "none"; `seccomp` the compiled filter; `bwrap` bubblewrap's command line up to the
    program; `own_user` whether that makes a user namespace; `missing` what keeps the machine from a better letter.
    """

    letter: str
    seccomp: bytes = b""
    bwrap: tuple[str, ...] = ()
    own_user: bool = False
    landlock_abi: int = 0
    missing: str = ""

    def __str__(self) -> str:
        landlock = f"Landlock (ABI {self.landlock_abi})"
        return {
            "A": f"A: bubblewrap, {landlock}, seccomp, rlimits",
            "B": f"B: {landlock}, seccomp, rlimits; no bubblewrap ({self.missing})",
            "C": f"C: seccomp, rlimits; no Landlock in this kernel ({self.missing})",
            "none": f"none: {self.missing}",
        }[self.letter]


@functools.cache
def isolation() -> Isolation:
    """The layers that this machine offers, tried once per process (0.3 s)."""
    if sys.platform != "linux":
        return Isolation("none", missing=f"isolation needs Linux, this is {sys.platform}; use a Linux container")
    try:
        seccomp = layers.compile_filter()
    except layers.ConfinementError as error:
        return Isolation("none", missing=str(error))
    abi, bwrap = layers.landlock_abi(), shutil.which("bwrap")
    no_bwrap = "install the package bubblewrap"
    if abi and bwrap is not None:
        own_user = os.geteuid() != 0
        command = _bubblewrap(bwrap, own_user)
        said = _trial(command)
        if not said:
            return Isolation("A", seccomp, tuple(command), own_user, abi)
        no_bwrap = f"it does not start here: {said}"
    said = _trial([])
    if said:
        return Isolation("none", missing=f"no process can confine itself here: {said}; use a Linux kernel with seccomp")
    if not abi:
        return Isolation("C", seccomp, missing="it needs Linux 5.13 with landlock among its security modules")
    return Isolation("B", seccomp, landlock_abi=abi, missing=no_bwrap)


def _trial(command: list[str]) -> str:
    """Why a process started with `command` cannot confine itself; nothing if it can."""
    try:
        trial = subprocess.run(
            [*command, sys.executable, "-P", "-s", "-c", _TRIAL, str(Path(__file__).parent)],
            env=ENVIRONMENT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
            preexec_fn=_heed_children,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if trial.stdout == "confined\n":
        return ""
    return (trial.stderr.strip().splitlines() or [f"exit code {trial.returncode}"])[-1]


def _heed_children() -> None:
    """Undo what a caller hands down that ignores its children's ends: bubblewrap would wait for its own for ever."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def tier() -> str:
    """One line for `whale doctor` and the records of a run: the tier's letter and its layers; tried once, then kept."""
    found = isolation()
    if found.letter == "none" and is_unsafe():
        return f"unsafe: code of the model runs without isolation, as you asked ({found.missing})"
    return str(found)


def allow_unsafe() -> None:
    """Let untrusted code run without isolation where this machine offers none (the command line's `--unsafe`)."""
    os.environ[UNSAFE_VARIABLE] = "1"


def is_unsafe() -> bool:
    """Whether the user has allowed untrusted code without isolation."""
    return os.environ.get(UNSAFE_VARIABLE) == "1"


def require() -> Isolation:
    """The layers to use. Raises `UserError` where there are none and the user has not allowed that."""
    found = isolation()
    if sys.platform != "linux":
        raise UserError(f"cannot run untrusted code here: {found.missing}")
    if found.letter == "none" and not is_unsafe():
        raise UserError(
            f"cannot run untrusted code here: {found.missing}; or give --unsafe, if what it may do to this machine "
            "does not matter"
        )
    return found


def command(script: Path, *args: str) -> list[str]:
    """The command line that runs a Python file of this package as the clean process of a sandbox.

    Inside bubblewrap at tier A. Start it with `ENVIRONMENT`; inherited descriptors are passed on. The file calls
    `layers.confine` (or forks children that do) before it runs what is not trusted.
    """
    return [*require().bwrap, sys.executable, "-P", "-s", str(script), *args]


def _bubblewrap(bwrap: str, own_user: bool) -> list[str]:
    """System libraries, the interpreter and this package's processes, read-only; nothing else, and no network."""
    package = Path(__file__).parent.parent
    shown = ["/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc/ld.so.cache", sys.base_prefix, sys.prefix]
    shown += [str(PACKAGES)]
    shown += [str(package / name) for name in ("sandbox", "harness", "errors.py")]
    result = [bwrap, "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    result += ["--unshare-user"] if own_user else []
    result += ["--cap-drop", "ALL"]
    if not own_user:  # root's children change to users of their own
        for capability in ("CAP_SETUID", "CAP_SETGID", "CAP_KILL"):
            result += ["--cap-add", capability]
    for path in dict.fromkeys(shown):
        result += ["--ro-bind-try", path, path]
    return [*result, "--proc", "/proc", "--dev-bind", "/dev/null", "/dev/null", "--chdir", "/"]
