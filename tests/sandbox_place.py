"""A sandbox in another place: under a system call filter as a container has it, or as another user.

`Place` starts this file with the place's filter on; it reads jobs and writes results, a JSON line each.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from whale_envs.harness.helpers import ExecResult

ROOT = Path(__file__).parent.parent
#: Filters on a process and all that it starts, as arguments of `pyseccomp.SyscallFilter.add_rule`.
FILTERS = {
    "none": "",
    "no Landlock": "rules.add_rule(s.ERRNO(errno.ENOSYS), 'landlock_create_ruleset')",
    "no namespaces": (
        "[rules.add_rule(s.ERRNO(errno.EPERM), name) for name in ('unshare', 'mount', 'pivot_root', 'setns')]\n"
        "for flag in (1 << 17, 1 << 28, 1 << 29):\n"
        "    rules.add_rule(s.ERRNO(errno.EPERM), 'clone', s.Arg(0, s.MASKED_EQ, flag, flag))"
    ),
    "no seccomp": "rules.add_rule(s.ERRNO(errno.EINVAL), 'prctl', s.Arg(0, s.EQ, 22))",
}
#: Another user, who may still read: the interpreter may be in a home directory of root's.
AS_NOBODY = (
    "setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=+dac_read_search --ambient-caps=+dac_read_search"
).split()


def filtered(name: str, code: str) -> str:
    """A program that puts a filter on itself and then runs `code`."""
    return (
        f"import errno\nimport pyseccomp as s\nrules = s.SyscallFilter(s.ALLOW)\n{FILTERS[name]}\nrules.load()\n{code}"
    )


def can_be_nobody() -> bool:
    """Whether this process can start others as another user."""
    return os.geteuid() == 0 and shutil.which("setpriv") is not None


_SERVE = """
import json, sys
from whale_envs.sandbox import Pool, tier
pool = Pool(json.loads(sys.argv[1]))
print(json.dumps(tier()), flush=True)
for line in sys.stdin:
    print(json.dumps(vars(pool.run(*json.loads(line)))), flush=True)
"""


class Place:
    """A process that runs jobs elsewhere; `tier` is what it found there."""

    def __init__(self, filter_name: str, preload: tuple[str, ...], nobody: bool = False) -> None:
        command = [sys.executable, "-c", filtered(filter_name, _SERVE), json.dumps(preload)]
        self._process = subprocess.Popen(
            [*AS_NOBODY, *command] if nobody else command,
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.tier: str = self._read()

    def _read(self) -> object:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"it ended with exit code {self._process.wait(10)}"
        return json.loads(line)

    def run(self, code: str, timeout: float = 20.0, memory_mb: int = 64) -> ExecResult:
        """See `Pool.run`."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([code, timeout, memory_mb]) + "\n")
        self._process.stdin.flush()
        return ExecResult(**self._read())

    def close(self) -> None:
        """End it."""
        self._process.communicate()
