"""A session is one program in several calls, and takes nothing along that it should not."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whale_envs.sandbox import Pool, Session
from whale_envs.tools.python_tool import python_session, run_python

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="isolation needs Linux")

POOL = Pool(["threading", "socket"])
LOST = "the session ended, and its names are gone; the next call starts anew\n"


@pytest.fixture
def cell():
    """Runs cells of a session."""
    with Session(POOL) as session:
        yield lambda code, timeout=20.0: session.run(code, timeout, 128)


def _process(session: Session) -> int:
    """The descriptor of a session's process, open as long as the test wants it."""
    return os.dup(session._running._pidfd)


def _ended(pidfd: int) -> bool:
    import select

    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    ended = bool(poller.poll(10_000))
    os.close(pidfd)
    return ended


def test_names_imports_and_random_state_stay():
    with python_session() as session:
        results = [
            run_python(code, session=session)
            for code in ("import sympy\nx = sympy.Symbol('x')", "y = sympy.factor(x**2 - 1)", "y", "import random")
        ]
        assert [r.status for r in results] == ["ok"] * 4 and results[2].stdout == "(x - 1)*(x + 1)\n"
        draws = [run_python("random.random()", session=session).stdout for _ in range(2)]
    assert draws[0] != draws[1]
    assert draws[0] + draws[1] == run_python("import random\nprint(random.random())\nrandom.random()").stdout


STATEMENTS = [
    "x = 1", "x += 2", "print(x)", "import math", "print(math.pi)", "def f(n):\n    return n * x", "print(f(3))", "x",
    "del x", "for i in range(2):\n    print(i)", "class A:\n    b = 5", "A.b",
]  # fmt: skip


@settings(max_examples=12, deadline=None)
@given(st.lists(st.sampled_from(STATEMENTS), min_size=1, max_size=8), st.data())
def test_a_program_in_pieces_prints_what_it_prints_whole(statements, data):
    code = ["x = 0\nimport math\nf = abs\nclass A:\n    b = 6", *statements]
    shown = [f"print(repr({s}))" if s in ("x", "A.b") else s for s in code]
    whole = POOL.run("\n".join(shown), 20.0, 128)
    with Session(POOL) as session:
        said, status = "", "ok"
        while code and status == "ok":
            size = data.draw(st.integers(1, len(code)))
            piece, code = code[:size], code[size:]
            lines = [f"print(repr({s}))" if s in ("x", "A.b") else s for s in piece[:-1]]
            result = session.run("\n".join([*lines, piece[-1]]), 20.0, 128)
            said, status = said + result.stdout, result.status
    assert (said, status) == (whole.stdout, whole.status)


def test_an_error_leaves_the_names_and_shows_the_lines_of_earlier_cells(cell):
    cell("a = 4\ndef half(x):\n    return x / 0")
    result = cell("half(a)")
    assert result.status == "error" and result.stdout == ""
    lines = result.stderr.splitlines()
    assert lines[1:4] == ['  File "cell 2", line 1, in <module>', "    half(a)", '  File "cell 1", line 3, in half']
    assert lines[4] == "    return x / 0" and lines[-1] == "ZeroDivisionError: division by zero"
    assert cell("a").stdout == "4\n"


@pytest.mark.parametrize("code", ["import sys\nsys.exit(3)", "def f(:", "raise KeyboardInterrupt", "bytes(1 << 40)"])
def test_what_does_not_end_the_process_leaves_the_names(cell, code):
    cell("a = 4")
    assert cell(code).status in ("error", "memory")
    assert cell("a").stdout == "4\n"


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("print('so far')\nwhile True: pass", "timeout"),
        ("print('so far')\nwhile True: print('x' * 999)", "output"),
        ("print('so far')\nimport os\nos._exit(0)", "ok"),
        ("print('so far')\nimport os\nos._exit(1)", "error"),
        ("print('so far')\nimport os\nos.abort()", "killed"),
        ("print('so far')\nimport os\nos.closerange(0, 99)", "error"),
    ],
)
def test_what_ends_the_process_says_that_the_names_are_gone(cell, code, status):
    cell("a = 4")
    result = cell(code, 0.5 if status == "timeout" else 20.0)
    assert result.status == status and result.stdout.startswith("so far\n") and result.stderr.endswith(LOST)
    result = cell("a")
    assert result.status == "error" and result.stderr.endswith("NameError: name 'a' is not defined\n")


def test_each_cell_has_its_own_time_and_output(cell):
    for _ in range(3):
        result = cell("import time\ntime.sleep(0.3)\nprint('x' * 50000)", 5.0)
        assert result.status == "ok" and len(result.stdout) == 50001
        time.sleep(0.1)
    assert 0.3 <= result.seconds < 5


def test_nothing_runs_between_cells(cell):
    cell(
        "import threading\nn = 0\ndef count():\n    global n\n    while True:\n        n += 1\n"
        "threading.Thread(target=count, daemon=True).start()"
    )
    first = int(cell("n").stdout)
    time.sleep(0.5)
    seen = int(cell("n").stdout)
    result = cell("import time\nbefore = n\ntime.sleep(0.2)\nn - before")
    assert seen - first < int(result.stdout)  # 0.5 s of standing still against 0.2 s of running


#: Writes on every descriptor but the standard ones, one of which is the session's.
FORGE = "import os\nfor fd in range(3, 64):\n  try: os.write(fd, bytes([{byte}]) * {count})\n  except OSError: pass\n"


@pytest.mark.parametrize("byte", [0, 1, 3, 77])
@pytest.mark.parametrize("count", [1, 70_000])
def test_forged_answers_lie_about_the_cell_alone(cell, byte, count):
    start = time.monotonic()
    forged = cell(FORGE.format(byte=byte, count=count) + "while True: pass", 1.0)
    assert forged.status in ("ok", "error", "memory", "killed", "timeout")
    after = [cell("print(1)", 1.0) for _ in range(3)]
    assert (after[-1].stdout, after[-1].stderr, after[-1].status) == ("1\n", "", "ok")
    assert time.monotonic() - start < 30


#: Says that the cell is done, which it is not, and reads so many bytes of the next one.
EAT = (
    "import os\nfor fd in range(3, 64):\n  try: os.write(fd, b'\\0'); break\n"
    "  except OSError: pass\nos.read(fd, {count})"
)


def test_a_session_that_reads_its_own_cells_harms_itself_alone(cell):
    assert cell(EAT.format(count=1) + "\nNone").status == "ok"
    results = [cell("print(1)", 1.0) for _ in range(4)]
    assert (results[0].stdout, results[0].status) == ("", "ok"), "the first byte of its length was eaten"
    assert results[1].status == "timeout" and results[1].stderr.endswith(LOST)
    assert [r.stdout for r in results[2:]] == ["1\n"] * 2
    assert POOL.run("2", 20.0, 64).stdout == "2\n"


def test_a_session_that_ends_with_a_cell_unread_says_that_the_names_are_gone(cell):
    cell(EAT.format(count=4) + "\nos.write(fd, b'\\0')\nos._exit(0)")
    results = [cell("1 + 1") for _ in range(3)]
    assert [r for r in results[:2] if r.stderr.endswith(LOST)], results
    assert (results[2].stdout, results[2].status) == ("2\n", "ok")


def test_a_cell_of_the_greatest_length():
    with python_session() as session:
        code = "len('{}')"
        length = (1 << 20) - len(code) + 2
        assert run_python(code.format("x" * length), session=session).stdout == f"{length}\n"


def test_closing_ends_the_process_and_the_next_cell_starts_anew():
    session = Session(POOL)
    session.run("a = 1", 20.0, 64)
    process = _process(session)
    session.close()
    session.close()
    assert _ended(process)
    assert session.run("a", 20.0, 64).status == "error"
    session.close()


def test_a_session_that_is_forgotten_ends():
    session = Session(POOL)
    session.run("a = 1", 20.0, 64)
    process = _process(session)
    del session
    gc.collect()
    assert _ended(process)


def test_a_session_whose_zygote_ended_says_so():
    pool = Pool()
    with Session(pool) as session:
        session.run("a = 1", 20.0, 64)
        pool.close()
        result = session.run("a", 20.0, 64)
        assert result.status == "killed" and result.stderr.endswith(LOST)
        assert session.run("2", 20.0, 64).stdout == "2\n"
    pool.close()


def _in_copy(session, queue):
    results = [session.run(code, 20.0, 64) for code in ("a", "b = 2", "b")]
    queue.put([(r.stdout, r.status) for r in results])


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_copy_of_the_caller_has_no_part_in_the_session():
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    with Session(POOL) as session:
        session.run("a = 1", 20.0, 64)
        process = context.Process(target=_in_copy, args=(session, queue))
        process.start()
        assert queue.get(timeout=120) == [("", "killed"), ("", "ok"), ("2\n", "ok")]
        process.join(60)
        assert session.run("a", 20.0, 64).stdout == "1\n"
    queue.close()
    queue.join_thread()


def test_many_sessions_live_side_by_side():
    sessions = [Session(POOL) for _ in range(40)]
    for _ in range(2):
        for number, session in enumerate(sessions):
            session.run(f"n = globals().get('n', 0) + {number}", 20.0, 64)
    assert [session.run("n", 20.0, 64).stdout for session in sessions] == [f"{2 * n}\n" for n in range(40)]
    before = len(os.listdir("/proc/self/fd"))
    for session in sessions:
        session.close()
    assert len(os.listdir("/proc/self/fd")) == before - 4 * 40


def test_memory_is_bounded_over_all_cells(cell):
    statuses = [cell(f"x{n} = bytes(30 << 20)").status for n in range(6)]
    assert statuses[:3] == ["ok"] * 3 and "memory" in statuses
