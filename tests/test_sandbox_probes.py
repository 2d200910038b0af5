"""What hostile code cannot do, probe by probe, in each place. After each probe the same pool serves the next job."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest
from sandbox_place import Place, can_be_nobody
from sandbox_probes import MACHINE_CODE, ODD, PRELOAD, RAW_CALLS, REFUSED, STOPPED

from whale_envs.sandbox import Pool, tier

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="isolation needs Linux")
x86_64 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="system call numbers of x86-64")

POOL = Pool(PRELOAD)


def run(code: str, timeout: float = 20.0, memory_mb: int = 64):
    return POOL.run(code, timeout, memory_mb)


@pytest.fixture(
    scope="module",
    params=[
        "here",
        "no namespaces",
        "no Landlock",
        pytest.param("not root", marks=pytest.mark.skipif(not can_be_nobody(), reason="needs root and setpriv")),
    ],
)
def place(request):
    """A function that runs a job in one of the places, and the tier there."""
    if request.param == "here":
        yield run, tier()
        return
    elsewhere = Place("none" if request.param == "not root" else request.param, PRELOAD, request.param == "not root")
    yield elsewhere.run, elsewhere.tier
    elsewhere.close()


@pytest.fixture(autouse=True)
def the_pool_serves_the_next_job(request):
    yield
    there = request.getfixturevalue("place")[0] if "place" in request.fixturenames else run
    result = there("6 * 7")
    assert (result.stdout, result.stderr, result.status) == ("42\n", "", "ok")


def test_each_place_has_a_tier(place, request):
    letter = place[1][:3]
    expected = {"no namespaces": ("B: ",), "no Landlock": ("C: ",)}
    assert letter in expected.get(request.node.callspec.params["place"], ("A: ", "B: ", "C: "))


@pytest.mark.parametrize("name", REFUSED)
def test_refused(place, name):
    result = place[0](
        "import os, sys\n"
        + "".join(f"import {module}\n" for module in PRELOAD)
        + "P = getattr(os, 'sched_param', None)\n"
        "def refused(source):\n"
        "    try:\n"
        "        value = eval(source)\n"
        "    except (OSError, ValueError, ZeroDivisionError):\n"
        "        return\n"
        "    print('DONE', source, value)\n" + "".join(f"refused({line!r})\n" for line in REFUSED[name].splitlines())
    )
    assert (result.stdout, result.status) == ("", "ok"), result
    assert not os.path.lexists("/tmp/whale_probe") and not os.path.lexists("/dev/shm/whale_probe")


@x86_64
@pytest.mark.parametrize("name", RAW_CALLS)
def test_raw_system_calls_are_refused(place, name):
    result = place[0](
        "import ctypes, errno\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        f"for name, (number, *arguments) in {RAW_CALLS[name]!r}.items():\n"
        "    arguments = [ctypes.c_long(a) if isinstance(a, int) else a for a in (number, *arguments)]\n"
        "    value = libc.syscall(*arguments)\n"
        "    number = ctypes.get_errno()\n"
        "    if value != -1 or number not in (errno.EPERM, errno.ENOSYS):\n"
        "        print(name, value, number)\n"
        "print('end')"
    )
    assert (result.stdout, result.status) == ("end\n", "ok"), result


@x86_64
@pytest.mark.parametrize("name", MACHINE_CODE)
def test_other_system_call_tables_kill(place, name):
    result = place[0](
        "import ctypes, mmap\n"
        "page = mmap.mmap(-1, 4096, prot=7)\n"
        f"page.write(bytes.fromhex({MACHINE_CODE[name]!r}))\n"
        "ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()\n"
        "print('returned')\n"
    )
    assert (result.stdout, result.status) == ("", "killed")
    assert f"signal {signal.SIGSYS.value}" in result.stderr


@pytest.mark.parametrize("name", STOPPED)
def test_stopped(name):
    code, statuses, timeout = STOPPED[name]
    start = time.perf_counter()
    result = run(code, timeout)
    assert result.status in statuses, result
    assert len(result.stdout) <= 65536 and len(result.stderr) <= 65536 + 100
    assert time.perf_counter() - start < timeout + 10


@pytest.mark.parametrize("name", ODD)
def test_odd(name):
    code, stdout, status = ODD[name]
    result = run(code, memory_mb=256)
    assert (result.stdout, result.status) == (stdout, status), result


def test_thread_bomb(place):
    result = place[0](
        "import _thread, time\n_thread.stack_size(65536)\nn = 0\ntry:\n"
        "  while True:\n    _thread.start_new_thread(time.sleep, (9,)); n += 1\n"
        "except RuntimeError: print(n)",
        memory_mb=64,
    )
    assert result.status == "ok", result
    assert 8 <= int(result.stdout) <= 1024  # by memory; where the kernel counts this job's threads alone, by number
    if os.geteuid() == 0 and place[0] is run:
        assert int(result.stdout) <= 64


def test_no_descriptor_is_inherited(place):
    result = place[0](
        "import os\nfor fd in range(4096):\n  try: os.get_inheritable(fd)\n  except OSError: continue\n  print(fd)"
    )
    assert (result.stdout, result.status) == ("0\n1\n2\n", "ok"), result


def test_nothing_of_the_caller_or_of_another_job_is_in_memory(monkeypatch):
    monkeypatch.setenv("WHALE_CANARY", "canary-5309")
    POOL.close()  # the next one starts with the variable set
    run("a = 'canary-' + '5310'")
    result = run(
        "import gc, os, sys\n"
        "frames = [sys._getframe()]\n"
        "while frames[-1].f_back: frames.append(frames[-1].f_back)\n"
        "needle = 'canary' + '-53'\n"
        "def text(value): return value if isinstance(value, str) else value.decode('latin-1')\n"
        "seen = [value for o in gc.get_objects() if isinstance(o, (dict, list, tuple, set))\n"
        "        for value in ([*o, *o.values()] if isinstance(o, dict) else o)\n"
        "        if isinstance(value, (str, bytes)) and needle in text(value) and len(value) > len(needle)]\n"
        "local = [name for frame in frames for name, value in frame.f_locals.items() if name != 'needle'\n"
        "         and isinstance(value, (str, bytes)) and needle in text(value)]\n"
        "print(seen, local, sorted(os.environ))",
        memory_mb=256,
    )
    assert result.status == "ok" and result.stdout.startswith("[] [] ["), result
    assert "CANARY" not in result.stdout


def test_the_memory_below_python_holds_nothing_of_another_job():
    """The pages on which there are objects, and whatever was freed between them, read without Python's own checks."""
    mark, secret = os.urandom(8).hex(), os.urandom(8).hex()
    run(f"a = {mark + secret!r}\nb = [a + str(n) for n in range(999)]")
    result = run(
        "import ctypes, gc, re, sys\n"
        f"mark = ''.join(reversed({mark[::-1]!r})).encode()\n"
        "own = mark + b'0' * 16\n"
        "waiting, known = [own, sys.modules], {id(own)}\n"
        "while waiting:\n"
        "    for o in gc.get_referents(waiting.pop()):\n"
        "        if id(o) not in known: known.add(id(o)); waiting.append(o)\n"
        "pages = {address >> 12 for address in known}\n"
        "seen = set()\n"
        "for page in pages: seen.update(re.findall(mark + b'([0-9a-f]{16})', ctypes.string_at(page << 12, 4096)))\n"
        "print(len(pages), *sorted(seen))",
        memory_mb=256,
    )
    pages, *seen = result.stdout.split()
    assert result.status == "ok" and int(pages) > 500, result
    assert seen == [str(b"0" * 16)], "it finds its own, and nothing else"


def test_a_job_leaves_nothing_for_the_next(place):
    place[0]("import builtins, sys, os\nbuiltins.leak = 1\nsys.leak = 1\nos.environ['LEAK'] = '1'")
    result = place[0](
        "import builtins, sys, os\n(hasattr(builtins, 'leak'), hasattr(sys, 'leak'), 'LEAK' in os.environ)"
    )
    assert result.stdout == "(False, False, False)\n"
