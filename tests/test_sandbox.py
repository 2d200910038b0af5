"""The pool: nothing leaks or outlives its caller, and where a machine offers too little, nothing untrusted runs."""

from __future__ import annotations

import multiprocessing
import os
import py_compile
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import CodeType

import pytest
from sandbox_place import filtered

from whale_envs.sandbox import Pool, isolation, launch
from whale_envs.sandbox.archive import Archive
from whale_envs.sandbox.job import Job, _paths, _without_paths

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="isolation needs Linux")

POOL = Pool()
ROOT = Path(__file__).parent.parent


def run(code: str, timeout: float = 20.0, memory_mb: int = 64):
    return POOL.run(code, timeout, memory_mb)


@pytest.fixture(autouse=True)
def pool_serves_the_next_job():
    yield
    result = run("6 * 7")
    assert (result.stdout, result.stderr, result.status) == ("42\n", "", "ok")


def _resident_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def _held(pid: int) -> tuple[list[str], list[int]]:
    """The descriptors that a process has, and its descendants."""
    return sorted(os.listdir(f"/proc/{pid}/fd")), _descendants(pid)


@pytest.mark.parametrize("jobs", [40, pytest.param(1000, marks=pytest.mark.slow)])
def test_jobs_leak_no_descriptor_no_process_and_no_memory(jobs):
    kinds = ["1", "1 / 0", "import os; os._exit(1)", "print('x' * 100000)"]
    for code in kinds:
        run(code)
    caller, zygote = os.getpid(), _zygote()
    before = _held(caller), _held(zygote)
    memory = _resident_kb(caller), _resident_kb(zygote)
    for code in kinds * (jobs // len(kinds)):
        run(code)
    time.sleep(0.3)  # a result is out before its job is tidied away
    assert (_held(caller), _held(zygote)) == before
    assert _resident_kb(caller) < memory[0] + 20_000 and _resident_kb(zygote) < memory[1] + 4_000


def test_a_caller_that_stops_listening_takes_its_job_along():
    run("1")
    zygote = _zygote()
    thread = threading.Thread(target=_interrupted)
    thread.start()
    thread.join()
    deadline = time.monotonic() + 10
    while _descendants(zygote):
        assert time.monotonic() < deadline, "the job of an interrupted call goes on"
        time.sleep(0.02)


def _interrupted() -> None:
    """A call that ends in the middle, as by Ctrl-C, before it has heard that its job was started."""

    def interrupt(self: Job) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Job, "start", interrupt)
        run("while True: pass", 200)


def test_many_threads_get_their_own_results():
    with ThreadPoolExecutor(12) as executor:
        results = list(executor.map(lambda n: run(f"{n} * 2").stdout, range(36)))
    assert results == [f"{n * 2}\n" for n in range(36)]


def test_the_thread_that_started_the_zygote_may_end():
    POOL.close()
    thread = threading.Thread(target=run, args=("1",))
    thread.start()
    thread.join()
    pid = POOL._zygote.pid
    time.sleep(0.2)
    assert run("2").stdout == "2\n" and POOL._zygote.pid == pid


def test_a_killed_zygote_is_replaced_and_its_jobs_run_again():
    run("1")
    os.kill(_zygote(), signal.SIGKILL)
    assert run("2").stdout == "2\n"
    killer = threading.Timer(0.5, os.kill, (_zygote(), signal.SIGKILL))
    killer.start()
    assert run("import time\ntime.sleep(1.5)\n3", timeout=60).stdout == "3\n"
    killer.join()


def _in_child(queue):
    queue.put(run("5").stdout)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_other_processes_have_a_zygote_of_their_own(method):
    run("1")
    pid = POOL._zygote.pid
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    process = context.Process(target=_in_child, args=(queue,))
    process.start()
    assert queue.get(timeout=120) == "5\n"
    process.join(60)
    assert process.exitcode == 0
    assert run("6").stdout == "6\n" and POOL._zygote.pid == pid
    queue.close()
    queue.join_thread()


def _script(code: str, *args: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *args]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _descendants(pid: int) -> list[int]:
    ps = subprocess.Popen(["ps", "-eo", "pid=,ppid="], stdout=subprocess.PIPE, text=True)
    rows = [line.split() for line in ps.communicate()[0].splitlines()]
    children: dict[int, list[int]] = {}
    for child, parent in rows:
        if int(child) != ps.pid:
            children.setdefault(int(parent), []).append(int(child))
    found = [pid]
    for parent in found:
        found += children.get(parent, [])
    return found[1:]


def _runs(pid: int) -> bool:
    """Whether a process is there, and not only to be reaped."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except (FileNotFoundError, ProcessLookupError):
        return False


def _zygote(pool: Pool = POOL) -> int:
    """The zygote itself: below whatever bubblewrap starts, above a job that is about to end."""
    python = os.fsencode(sys.executable)
    pids = [pool._zygote.pid, *_descendants(pool._zygote.pid)]
    return next(pid for pid in pids if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(python))


def test_output_counts_as_cut_when_something_of_it_is_missing():
    whole = run("import os\nos.write(1, b'x' * 65536)\nNone")
    assert (whole.status, whole.stdout, whole.stderr) == ("ok", "x" * 65536, "")
    cut = run("import os\nos.write(1, b'x' * 65536)\nos.write(1, b'y')\nNone")
    assert (cut.status, cut.stdout) == ("output", "x" * 65536)


def test_a_zygote_that_hangs_costs_the_caller_some_seconds_and_no_job(monkeypatch):
    monkeypatch.setattr(launch, "HUNG_SECONDS", 1.0)
    pool = Pool()
    pool.run("1", 20.0, 64)
    stuck = pool._zygote
    started = [stuck.pid, *_descendants(stuck.pid)]
    os.kill(started[-1], signal.SIGSTOP)
    assert pool.run("2", 1.0, 64).stdout == "2\n" and pool._zygote is not stuck
    assert not [pid for pid in started if _runs(pid)], "what hangs is ended"
    pool.close()


def test_a_zygote_that_hangs_while_a_job_runs_is_given_up(monkeypatch):
    monkeypatch.setattr(launch, "HUNG_SECONDS", 1.0)
    pool = Pool()
    pool.run("1", 20.0, 64)
    zygotes = [_zygote(pool), None]
    stop = threading.Timer(0.5, lambda: os.kill(zygotes[0], signal.SIGSTOP))
    stop.start()
    assert pool.run("import time\ntime.sleep(1)\n3", 3.0, 64).stdout == "3\n"
    stop.join()
    pool.close()


@pytest.mark.parametrize("left", range(7))
def test_a_zygote_that_finds_no_descriptor_leaves_none_open(left):
    code = (
        "import os, resource\nfrom whale_envs.sandbox import Pool, tier\n"
        "spare = [os.dup(0) for _ in range(12)]\n"  # the zygote's are moved up to 10 and above
        "tier(); before = sorted(os.listdir('/proc/self/fd'))\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, (len(before) - 1 + {left}, 9999))\n"
        "try: Pool().run('1', 20.0, 64)\nexcept OSError as error: print(error.strerror)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (999, 9999))\n"
        "print(sorted(os.listdir('/proc/self/fd')) == before)"
    )
    out, err = _script(code).communicate(timeout=120)
    assert out.splitlines() == ["Too many open files", "True"] and "ResourceWarning" not in err, (out, err)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives jobs users of their own")
def test_jobs_of_different_zygotes_are_different_users():
    bases = set()
    for _ in range(3):
        pool = Pool()
        bases.add(int(pool.run("import os\nos.getuid() - os.getpid()", 20.0, 64).stdout))
        pool.close()
    assert len(bases) > 1


def test_messages_name_no_folder_of_a_person(monkeypatch):
    monkeypatch.setattr(isolation, "PACKAGES", Path("/home/ada/.local/lib/python3.11/site-packages"))
    _paths.cache_clear()
    said = _without_paths("/home/ada/.local/lib/python3.11/site-packages/sympy/core.py")
    _paths.cache_clear()
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert said == f"/python/lib/python{version}/site-packages/sympy/core.py"


def test_imported_code_names_the_file_that_it_was_found_as(tmp_path, monkeypatch):
    package = tmp_path / "built_elsewhere"
    package.mkdir()
    source = package / "__init__.py"
    source.write_text("class A:\n    def f(self):\n        return lambda: 1\n")
    py_compile.compile(str(source), dfile="/home/ada/build/__init__.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    code = [Archive(["built_elsewhere"]).get_code("built_elsewhere")]
    for outer in code:
        code += [inner for inner in outer.co_consts if isinstance(inner, CodeType)]
    assert len(code) == 4 and {c.co_filename for c in code} == {str(source)}


POISON = """
import ctypes, marshal, sys
archive = next(finder for finder in sys.meta_path if hasattr(finder, "_bytes"))
address = ctypes.c_void_p.from_address(id(archive._bytes) + 16).value  # where it is mapped
libc = ctypes.CDLL(None, use_errno=True)
size = -(-len(archive._bytes) // 4096) * 4096
print(libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), 3))
code = marshal.dumps(compile("print('poisoned')", "x", "exec"))
ctypes.memmove(address + archive._where["colorsys"][0], code, len(code))
"""


def test_no_job_can_change_what_the_next_ones_import():
    result = run(POISON)
    assert (result.stdout, result.status) == ("-1\n", "killed")
    assert run("import colorsys\ncolorsys.ONE_THIRD > 0").stdout == "True\n"


def test_no_memory_that_is_shared_with_jobs_may_become_writable():
    run("1")
    flags = re.findall("VmFlags:(.*)", Path(f"/proc/{_zygote()}/smaps").read_text())
    assert len(flags) > 10 and not [flag for flag in flags if {"sh", "mw"} <= {*flag.split()}]


def test_nothing_outlives_a_killed_caller():
    script = _script(
        "import threading\nfrom whale_envs.sandbox import Pool\npool = Pool()\npool.run('1', 20, 64)\n"
        "for _ in range(2): threading.Thread(target=pool.run, args=('while True: pass', 200.0, 64)).start()\n"
        "print('running', flush=True)"
    )
    assert script.stdout.readline() == "running\n"
    time.sleep(1)
    started = _descendants(script.pid)
    assert len(started) >= 3  # the zygote and two jobs
    script.kill()
    script.communicate()
    deadline = time.monotonic() + 10
    while any(os.path.exists(f"/proc/{pid}") for pid in started):
        assert time.monotonic() < deadline, "a process outlived the killed caller"
        time.sleep(0.05)


REPORT = """
from whale_envs.errors import UserError
from whale_envs.sandbox import Pool, tier
print(tier())
try:
    print(Pool().run("import os\\ntry: os.fork()\\nexcept OSError: print('contained')", 20.0, 64).stdout, end="")
except UserError as error:
    print(error)
"""


def _report(filter_name: str) -> list[str]:
    out, err = _script(filtered(filter_name, REPORT)).communicate(timeout=120)
    assert out, err
    return out.splitlines()


def test_tier_c_without_landlock():
    tier, job = _report("no Landlock")
    assert tier.startswith("C: ") and "5.13" in tier and job == "contained"


def test_tier_b_where_a_container_refuses_namespaces():
    tier, job = _report("no namespaces")
    assert tier.startswith("B: ") and job == "contained"
    assert ("does not start here" if shutil.which("bwrap") else "install the package bubblewrap") in tier


def test_refused_without_seccomp():
    tier, message = _report("no seccomp")
    assert tier.startswith("none: ")
    assert message.startswith("cannot run untrusted code here: ") and "seccomp" in message and "--unsafe" in message


WITHOUT_LIBRARY = """
import sys
sys.modules["pyseccomp"] = None
from whale_envs.sandbox import Pool, tier, allow_unsafe
from whale_envs.errors import UserError
try:
    Pool().run("1", 20.0, 64)
except UserError as error:
    print(error)
allow_unsafe()
print(tier())
print(Pool().run("import os\\nif os.fork() == 0: exec('while True: pass')\\n2", 20.0, 64).stdout)
"""


def test_unsafe_only_when_asked_for():
    out, err = _script(WITHOUT_LIBRARY).communicate(timeout=120)
    lines = out.splitlines()
    assert "libseccomp2" in lines[0] and "--unsafe" in lines[0], err
    assert lines[1].startswith("unsafe: ") and lines[2] == "2"


NOT_LINUX = """
import sys
sys.platform = "darwin"
sys.modules["landlockpy"] = sys.modules["pyseccomp"] = None
import whale_envs
from whale_envs.sandbox import allow_unsafe, tier
from whale_envs.tools.python_tool import run_python
print(tier())
allow_unsafe()
try:
    run_python("1")
except whale_envs.errors.UserError as error:
    print(error)
"""


def test_elsewhere_than_on_linux_the_package_loads_and_code_is_refused():
    out, err = _script(NOT_LINUX).communicate(timeout=120)
    assert [line.partition("; use a Linux container")[1] for line in out.splitlines()] == [
        "; use a Linux container"
    ] * 2, err


#: A filter with a hole, in the trial that finds the tier or in a zygote.
LEAKY = """
import sys
from whale_envs.errors import UserError
from whale_envs.sandbox import Pool, isolation, layers, tier
if sys.argv[1] == "trial":
    isolation._TRIAL = isolation._TRIAL.replace("layers.confine", f"layers.ALLOWED += {sys.argv[2:]!r}; layers.confine")
else:
    layers.ALLOWED += sys.argv[2:]
print(tier())
try:
    print(Pool().run("1", 20.0, 64).stdout)
except UserError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("where", "calls", "found"),
    [
        ("trial", ["openat"], "reads a file"),
        ("trial", ["clone"], "starts a process"),
        ("zygote", ["socket"], "opens a socket"),
    ],
)
def test_the_self_test_finds_a_filter_with_a_hole(where, calls, found):
    out, err = _script(filtered("no Landlock", LEAKY), where, *calls).communicate(timeout=120)
    tier, message = out.splitlines()
    assert tier.startswith("none: " if where == "trial" else "C: "), err
    assert found in message and ("cannot run" if where == "trial" else "does not hold") in message


def test_landlock_stands_behind_the_filter():
    tier, result, *_ = _script(LEAKY, "zygote", "openat", "open", "kill").communicate(timeout=120)[0].splitlines()
    if tier.startswith("C"):
        pytest.skip("this kernel has no Landlock")
    assert result == "1"


@pytest.mark.parametrize(
    ("command", "before"),
    [
        ("ulimit -n 64; exec", ""),
        ("ulimit -u 40; exec", ""),
        ("exec 0<&- 2>&-; exec", ""),
        ("TMPDIR=/nonexistent LC_ALL=C exec env -u HOME", ""),
        ("exec", "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)"),
    ],
)
def test_where_a_caller_has_little_or_odd_things_jobs_run_all_the_same(command, before):
    code = f"{before}\nfrom whale_envs.sandbox import Pool\nresult = Pool().run('6 * 7', 20, 64)\n"
    code += "print(result.stdout, result.status)\n"
    shell = ["bash", "-c", f'{command} "$@"', "bash", sys.executable, "-c", code]
    done = subprocess.run(shell, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=120)
    assert done.stdout == "42\n ok\n"
