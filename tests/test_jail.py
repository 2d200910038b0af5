"""A jail contains what a harness does, and no episode is lost to another's failure."""

from __future__ import annotations

import ast
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sandbox_place import AS_NOBODY, ROOT, can_be_nobody, filtered
from toy_domain import Toy, toy_harness

from whale_envs import Episode, Harness, HarnessEnv
from whale_envs.contract import play, record
from whale_envs.harness import jail_process
from whale_envs.harness.jail import Jail, JailedSession, JailLimits
from whale_envs.sandbox import isolation

QUICK = JailLimits(seconds=0.3, memory_mb=128)

#: How a harness gets at what it was not given: every allowed module leads to `sys`.
REACH = "import dataclasses\nsys = dataclasses.sys\nos = sys.modules['os']\nsocket = sys.modules['socket']\n"

#: A harness that misbehaves when it is told to, and otherwise counts its turns, its draws and its tool's answers.
MIXED = (
    REACH
    + """
from whale_envs.harness import *
import random
def run(task, tools):
    seen = []
    while True:
        reply = yield [user(task.question), user(repr(seen))]
        if reply.text == "stop":
            return seen
        if reply.text == "hang":
            while True: pass
        if reply.text == "sleep":
            sys.modules["time"].sleep(60)
        if reply.text == "work":
            while sys.modules["time"].process_time() < 0.2: pass
        if reply.text == "die":
            os._exit(3)
        if reply.text == "overflow":
            sys.setrecursionlimit(10**9)
            one, other = [], []
            for _ in range(10**5): one, other = [one], [other]
            one == other
        if reply.text == "fill":
            x = [bytearray(1 << 20) for _ in range(4096)]
        seen.append([reply.text, random.random(), tools.look(reply.text)[0].text])
"""
)


@pytest.fixture
def jail() -> Iterator[Jail]:
    made = Jail(toy_harness(MIXED, trusted=False), QUICK)
    yield made
    made.close()
    made.close()


def step(env: HarnessEnv, text: str) -> Episode | None:
    """One step; the episode if it has ended."""
    _, _, terminated, truncated, info = env.step(text)
    return info["record"] if terminated or truncated else None


@pytest.mark.parametrize(
    ("misdeed", "message"),
    [
        ("hang", "TimeoutError: ran for more than 0.3 s between two model calls"),
        ("die", "its process ended (exit status 3)"),
        ("overflow", "its process ended (killed by SIGSEGV)"),
        ("fill", "MemoryError"),
    ],
)
def test_an_episode_that_takes_its_worker_down_fails_alone(jail: Jail, misdeed: str, message: str) -> None:
    undisturbed = []
    for trusted in (True, False):
        env = HarnessEnv(Toy(), harness=toy_harness(MIXED, trusted))
        undisturbed.append(record(play(env, 1, iter(["a", "b", "c", "stop"]))))
        env.close()
    envs = [HarnessEnv(Toy(), harness=jail.harness, jail=jail) for _ in range(2)]
    envs[0].reset(seed=1)
    envs[1].reset(seed=2)
    for text in ("a", "b"):
        assert step(envs[0], text) is None
        assert step(envs[1], text) is None
    failed = step(envs[1], misdeed)
    assert failed is not None and failed.failure is not None and failed.score == 0
    assert (failed.failure.owner, failed.failure.message) == ("harness", message)
    assert [c.reply.text for c in failed.calls] == ["a", "b", misdeed]
    assert step(envs[0], "c") is None
    ended = step(envs[0], "stop")
    assert ended is not None and ended.failure is None
    assert record(ended) == undisturbed[0] == undisturbed[1]


def worker_of(env: HarnessEnv) -> int:
    """The process id of an env's worker."""
    assert isinstance(env._session, JailedSession) and env._session.pid is not None
    return env._session.pid


def test_a_worker_that_is_killed_fails_its_episode_alone(jail: Jail) -> None:
    envs = [HarnessEnv(Toy(), harness=jail.harness, jail=jail) for _ in range(3)]
    for seed, env in enumerate(envs):
        env.reset(seed=seed)
        step(env, "a")
    os.kill(worker_of(envs[1]), signal.SIGKILL)
    for seed, env in enumerate(envs):
        episode = step(env, "stop")
        assert episode is not None
        if seed == 1:
            assert episode.failure is not None and episode.failure.owner == "harness"
            assert episode.failure.message == "its process ended (killed by SIGKILL)"
        else:
            assert episode.failure is None and len(episode.answer) == 1


def test_a_zygote_that_is_killed_costs_no_episode(jail: Jail) -> None:
    envs = [HarnessEnv(Toy(), harness=jail.harness, jail=jail) for _ in range(3)]
    for seed, env in enumerate(envs[:2]):
        env.reset(seed=seed)
        step(env, "a")
    first = jail.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    gone(first)
    envs[2].reset(seed=2)
    assert jail.pid not in (first, None)
    for env in envs:
        episode = step(env, "stop")
        assert episode is not None and episode.failure is None
    envs[0].reset(seed=0)
    orphan = worker_of(envs[0])
    os.kill(jail.pid or 0, signal.SIGKILL)
    envs[0].close()
    gone(orphan)


def test_no_process_is_left(jail: Jail) -> None:
    envs = [HarnessEnv(Toy(), harness=jail.harness, jail=jail) for _ in range(6)]
    for seed, env in enumerate(envs):
        env.reset(seed=seed)
    workers = [worker_of(env) for env in envs]
    step(envs[0], "stop")
    step(envs[1], "die")
    step(envs[2], "hang")
    envs[3].close()
    envs[4].reset(seed=9)
    for pid in workers[:5]:
        gone(pid)
    zygote, last = jail.pid, [workers[5], worker_of(envs[4])]
    assert zygote is not None
    jail.close()
    for pid in [zygote, *last]:
        gone(pid)


def test_a_harness_that_always_hangs_is_given_up() -> None:
    limits = JailLimits(seconds=0.1, losses=3)
    jail = Jail(toy_harness(MIXED, trusted=False), limits)
    env = HarnessEnv(Toy(), harness=jail.harness, jail=jail)
    failures = []
    for turn in (0, 1, 2, 1, 1, 1, 1):  # after so many turns; whoever gets past the first shows that not all hang there
        env.reset(seed=0)
        ended = [e for e in (step(env, "a") for _ in range(turn)) if e]
        episode = ended[0] if ended else step(env, "hang")
        assert episode is not None and episode.failure is not None
        failures.append(episode.failure.message.partition(":")[0])
    jail.close()
    assert failures == ["TimeoutError"] * 5 + ["GivenUp"] * 2


def test_one_that_waits_and_does_nothing_is_stopped() -> None:
    jail = Jail(toy_harness(MIXED, trusted=False), JailLimits(wall_seconds=2.0))
    env = HarnessEnv(Toy(), harness=jail.harness, jail=jail)
    env.reset(seed=0)
    episode = step(env, "sleep")
    jail.close()
    assert episode is not None and episode.failure is not None
    assert episode.failure.message == "TimeoutError: did nothing for more than 2 s between two model calls"


def test_processor_time_is_bounded_in_all() -> None:
    jail = Jail(toy_harness(MIXED, trusted=False), JailLimits(seconds=1.0, cpu_seconds=1))
    env = HarnessEnv(Toy(), harness=jail.harness, jail=jail)
    env.reset(seed=0)
    assert step(env, "work") is None
    episode = step(env, "hang")
    jail.close()
    assert episode is not None and episode.failure is not None
    assert episode.failure.message == "TimeoutError: ran for more than 1 s in one episode"


def test_closing_an_episode_that_will_not_end_spares_the_others(jail: Jail) -> None:
    source = """
def run(task, tools):
    try:
        while True:
            yield [user("a")]
    finally:
        while task.question.startswith("weight 0"): pass
"""
    stubborn = Jail(toy_harness("from whale_envs.harness import user\n" + source, False), QUICK)
    envs = [HarnessEnv(Toy(), harness=stubborn.harness, jail=stubborn) for _ in range(2)]
    envs[0].reset(seed=0, options={"task": "weight-0"})
    envs[1].reset(seed=0, options={"task": "weight-1"})
    envs[0].close()
    assert step(envs[1], "") is None
    envs[1].close()
    stubborn.close()


REFUSALS = ("PermissionError", "OSError", "ModuleNotFoundError", "RuntimeError", "ValueError")
PROBES = {
    "reads a file": "open_ = os.open('/etc/passwd', 0)",
    "lists a folder": "x = os.listdir('/')",
    "finds a file": "x = os.stat('/')",
    "writes a file": "x = os.open('/tmp/whale-jail-probe', os.O_CREAT | os.O_WRONLY)",
    "forks": "x = os.fork()",
    "starts a thread": "x = sys.modules['_thread'].start_new_thread(int, ())",
    "writes what it inherited": "x = [os.write(n, b'x') for n in range(3)]",
    "runs a program": "x = os.execv('/bin/true', ['true'])",
    "opens a socket": "x = socket.socket()",
    "opens a local socket": "x = socket.socketpair()",
    "signals its parent": "x = os.kill(os.getppid(), 0)",
    "reads its parent": "x = os.open(f'/proc/{os.getppid()}/mem', 0)",
    "lifts its limits": "import_ = sys.modules['resource'].setrlimit(0, (-1, -1))",
    "imports from disk": "x = sys.modules['importlib'].import_module('http.client')",
}


#: A harness that executes what the reply says, with `os`, `sys` and `socket` at hand.
REACHING = (
    REACH
    + """
def run(task, tools):
    reply = yield [{"role": "user", "content": "?"}]
    try:
        exec(reply.text, globals())
    except Exception as error:
        return type(error).__name__
    return str(globals().get("x", "done"))
"""
)


@pytest.fixture(scope="module")
def reaching() -> Iterator[HarnessEnv]:
    made = Jail(toy_harness(REACHING, False), QUICK)
    yield HarnessEnv(Toy(), harness=made.harness, jail=made)
    made.close()


@pytest.mark.parametrize("name", PROBES)
def test_a_jailed_harness_cannot(reaching: HarnessEnv, name: str) -> None:
    reaching.reset(seed=0)
    episode = step(reaching, PROBES[name])
    assert episode is not None and episode.answer in REFUSALS


PROBED = f"""
import json, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_jail import *
from whale_envs.sandbox import tier
jail = Jail(toy_harness(REACHING, False), QUICK)
env, answers = HarnessEnv(Toy(), harness=jail.harness, jail=jail), {{}}
for name, probe in PROBES.items():
    env.reset(seed=0)
    answers[name] = step(env, probe).answer
jail.close()
print(json.dumps([os.geteuid(), tier(), answers]))
"""


@pytest.mark.parametrize(
    ("filter_name", "nobody", "expected"),
    [
        ("no namespaces", False, "B: "),
        ("no Landlock", False, "C: "),
        pytest.param("none", True, "", marks=pytest.mark.skipif(not can_be_nobody(), reason="needs root and setpriv")),
    ],
)
def test_a_jailed_harness_cannot_in_another_place(filter_name: str, nobody: bool, expected: str) -> None:
    command = [*(AS_NOBODY if nobody else ()), sys.executable, "-c", filtered(filter_name, PROBED)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    user, tier, answers = json.loads(done.stdout)
    assert tier.startswith(expected) and (not nobody or user != 0)
    assert answers.keys() == PROBES.keys() and set(answers.values()) <= set(REFUSALS), answers


def test_a_jailed_harness_cannot_find_the_answer(reaching: HarnessEnv) -> None:
    hunt = """
gc = sys.modules["importlib"].import_module("gc")
def hunt():  # a function's locals are in no dict, so that the hunt does not find itself
    gold = "-".join(("GOLD", "weight"))
    return [repr(o) for o in gc.get_objects() if isinstance(o, (dict, list, tuple)) and gold in repr(o)]
x = hunt(), sys.argv, sorted(os.environ), [m for m in sys.modules if "verif" in m or "domain" in m or "contract" in m]
"""
    reaching.reset(seed=0)
    episode = step(reaching, hunt)
    assert episode is not None
    found, arguments, environment, modules = ast.literal_eval(episode.answer)
    assert (found, arguments, modules) == ([], [""], [])
    assert set(environment) <= {*isolation.ENVIRONMENT, "LC_CTYPE", "PWD"}


#: Sets x to what stands after a mark on the pages that hold Python's objects, read without Python's own checks.
SCAN = """
ctypes, gc, re = (sys.modules["importlib"].import_module(n) for n in ("ctypes", "gc", "re"))
mark = "".join(reversed({!r})).encode()
own = mark + b"0" * 16
waiting, known = [own, sys.modules], {{id(own)}}
while waiting:
    for o in gc.get_referents(waiting.pop()):
        if id(o) not in known: known.add(id(o)); waiting.append(o)
x = set()
for page in {{a >> 12 for a in known}}:
    x.update(re.findall(mark + b"([0-9a-f]{{16}})", ctypes.string_at(page << 12, 4096)))
x = sorted(x)
"""


def test_no_harness_finds_another_in_memory() -> None:
    mark, secret = os.urandom(8).hex(), os.urandom(8).hex()
    words = [f"{mark}{secret}{number}" for number in range(999)]
    other = Jail(toy_harness(f"{MIXED}\nWORDS = {words!r}", False))
    mine = Jail(toy_harness(REACHING, False))
    for jail, text in ((other, "stop"), (mine, SCAN.format(mark[::-1]))):
        env = HarnessEnv(Toy(), harness=jail.harness, jail=jail)
        env.reset(seed=0)
        episode = step(env, text)
        assert episode is not None and episode.failure is None
    for jail in (other, mine):
        jail.close()
    assert episode.answer == str([b"0" * 16]), "it finds its own, and nothing else"


FORGED = {
    "a length out of bounds": "b'\\xff' * 4",
    "a length and no more": "b'\\x00\\x00\\x10\\x00abc'",
    "what is not JSON": "frame(b'{')",
    "what is not UTF-8": "frame(b'\"\\xff\"')",
    "depth": "frame(b'[' * 100000)",
    "a list": "frame(b'[]')",
    "nothing": "frame(b'{}')",
    "two kinds": 'frame(b\'{"answer": 1, "ask": []}\')',
    "an unknown kind": "frame(b'{\"score\": 1}')",
    "not a number": "frame(b'{\"answer\": NaN}')",
    "an endless answer": "frame(b'{\"answer\": \"' + b'x' * 2000000 + b'\"}')",
    "a huge number": "frame(b'{\"answer\": ' + b'9' * 5000 + b'}')",
    "a failure without words": "frame(b'{\"fail\": 1}')",
    "a failure at length": "frame(b'{\"fail\": \"' + b'x' * 2000 + b'\"}')",
    "an ask of nothing": "frame(b'{\"ask\": null}')",
    "an ask of strangers": """ask(b'0, [{"role": "root", "content": ""}], null, null')""",
    "an ask with a wrong cap": "ask(b'0, ' + HELLO + b', null, -1')",
    "an ask after another": "ask(b'7, ' + HELLO + b', null, null')",
    "an ask that goes back": "ask(b'-1, ' + HELLO + b', null, null')",
    "an ask after half": "ask(b'0.5, ' + HELLO + b', null, null')",
    "an ask without end": "ask(b'0, ' + DEEP + b', null, null')",
    "an ask at length": """ask(b'1, [{"role": "user", "content": "' + LONG + b'"}], null, null')""",
    "length in an ask": """ask(b'1, [{"role": "user", "content": "", "a": "' + LONG + b'"}], null, null')""",
    "depth in an ask": """ask(b'1, [{"role": "user", "content": "", "a": ' + DEEP + b'}], null, null')""",
    "a tool call of nothing": "frame(b'{\"tool\": null}')",
    "a tool call without arguments": 'frame(b\'{"tool": ["look", null, {}]}\')',
    "a tool by number": "frame(b'{\"tool\": [1, [], {}]}')",
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_frames_fail_the_episode_alone(reaching: HarnessEnv, name: str) -> None:
    forge = f"""
def frame(data): return len(data).to_bytes(4, "big") + data
def ask(fields): return frame(b'{{"ask": [' + fields + b', [], {{}}]}}')
HELLO = b'[{{"role": "user", "content": ""}}]'
LONG, DEEP = b"x" * 600000, b"[" * 900 + b"]" * 900
data = {FORGED[name]}
for number in range(64):
    try:
        while data: data = data[os.write(number, data):]
    except OSError: pass
while True: pass
"""
    reaching.reset(seed=0)
    episode = step(reaching, forge)
    assert episode is not None and episode.failure is not None and episode.failure.owner == "harness"
    expected = "TimeoutError" if name == "a length and no more" else "sent what it may not: "
    assert episode.failure.message.startswith(expected)
    reaching.reset(seed=0)
    after = step(reaching, "x = 'fine'")
    assert after is not None and after.answer == "fine"


def test_an_ask_that_is_forged_piece_by_piece_is_bounded(reaching: HarnessEnv) -> None:
    forge = """
def is_open(n):
    try: return os.get_inheritable(n) is not None
    except OSError: return False
fd = next(n for n in range(3, 64) if is_open(n))
at = 1
while True:
    data = b'{"ask": [%d, [{"role": "user", "content": "", "a": "%s"}], null, null, [], {}]}' % (at, b"x" * 290000)
    data = len(data).to_bytes(4, "big") + data
    while data: data = data[os.write(fd, data):]
    os.read(fd, 65536)
    at += 1
"""
    reaching.reset(seed=0)
    assert step(reaching, forge) is None
    assert step(reaching, "go on") is None
    episode = step(reaching, "go on")
    assert episode is not None and episode.failure is not None
    assert episode.failure.message == "sent what it may not: an ask is larger than 600,000 characters"


@pytest.mark.parametrize("how", ["raise MemoryError", "os.close(fd)", "return"])
@pytest.mark.parametrize("unsafe", [False, True])
def test_a_harness_that_puts_another_function_for_the_end_ends(
    jail: Jail, how: str, unsafe: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (
        REACH
        + f"""
from whale_envs.harness import user
def is_open(n):
    try: return os.get_inheritable(n) is not None
    except OSError: return False
def run(task, tools):
    os._exit = lambda code: None
    fd = next(n for n in range(3, 64) if is_open(n))
    yield [user(task.question)]
    {how}
"""
    )
    other = HarnessEnv(Toy(), harness=jail.harness, jail=jail)
    other.reset(seed=1)
    if unsafe:  # nothing else keeps it from taking its zygote along
        monkeypatch.setattr(isolation, "require", lambda: isolation.Isolation("none"))
        monkeypatch.setattr(jail_process, "supervisor", jail_process.supervisor.__wrapped__)  # not one that is safe
    mine = Jail(toy_harness(source, trusted=False), QUICK)
    env = HarnessEnv(Toy(), harness=mine.harness, jail=mine)
    for seed in range(3):
        env.reset(seed=seed)
        worker, zygote = worker_of(env), mine.pid
        assert step(env, "a") is not None
        gone(worker)
        assert mine.pid == zygote
    mine.close()
    assert step(other, "stop") is not None


def test_workers_die_with_their_parent(tmp_path: Path) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_jail import *
jail = Jail(toy_harness(MIXED, False))
envs = [HarnessEnv(Toy(), harness=jail.harness, jail=jail) for _ in range(2)]
for env in envs:
    env.reset(seed=0)
print(jail.pid, *map(worker_of, envs), flush=True)
envs[0].step("hang")
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
    time.sleep(0.2)  # the first is in its loop, the second waits for a reply
    assert len(pids) == 3 and all(running(pid) for pid in pids)
    parent.kill()
    parent.wait()
    for pid in pids:
        gone(pid)


def running(pid: int) -> bool:
    """Whether a process runs: one that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone(pid: int) -> None:
    """Wait for a process's end."""
    deadline = time.monotonic() + 10
    while running(pid):
        assert time.monotonic() < deadline, "it does not end"
        time.sleep(0.01)


def test_a_forgotten_jail_takes_its_processes_along() -> None:
    made = Jail(toy_harness(MIXED, False), QUICK)
    worker = made.worker()
    pids = [made.pid or 0, worker.pid]
    del made, worker
    for pid in pids:
        gone(pid)


def test_a_forked_copy_does_not_touch_the_worker(jail: Jail) -> None:
    env = HarnessEnv(Toy(), harness=jail.harness, jail=jail)
    env.reset(seed=0)
    child = os.fork()
    if child == 0:
        env.close()
        jail.close()
        os._exit(0)
    os.waitpid(child, 0)
    zygote = jail.pid
    episode = step(env, "stop")
    assert episode is not None and episode.failure is None and jail.pid == zygote


def test_threads_may_each_have_a_jail() -> None:
    records: dict[int, list[bytes]] = {}

    def work(number: int) -> None:
        env = HarnessEnv(Toy(), harness=toy_harness(MIXED, False))
        records[number] = [record(play(env, seed, iter(["a", "b", "stop"]))) for seed in range(5)]
        env.close()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert records[0] == records[1] == records[2] and len(records[0]) == 5


def test_many_episodes_interleave(jail: Jail) -> None:
    alone = []
    for seed in range(12):
        env = HarnessEnv(Toy(), harness=toy_harness(MIXED))
        alone.append(record(play(env, seed, iter([str(seed), "b", "stop"]))))
    envs = [HarnessEnv(Toy(), harness=jail.harness, jail=jail) for _ in range(12)]
    todo = {seed: [str(seed), "b", "stop"] for seed in range(12)}
    for seed, env in enumerate(envs):
        env.reset(seed=seed)
    draw = random.Random(0)
    while todo:
        seed = draw.choice(list(todo))
        if step(envs[seed], todo[seed].pop(0)) is not None:
            del todo[seed]
    assert [record(env.episode) for env in envs if env.episode] == alone


@pytest.mark.parametrize("pause", [0.0, 0.4])
def test_an_episode_is_the_same_whether_its_worker_waited_or_not(jail: Jail, pause: float) -> None:
    jail.worker().close()
    jail.fork_ahead()
    time.sleep(pause)
    records = []
    for env in (HarnessEnv(Toy(), harness=jail.harness, jail=jail), HarnessEnv(Toy(), harness=toy_harness(MIXED))):
        records.append(record(play(env, 5, iter(["a", "b", "stop"]))))
    assert records[0] == records[1]


def test_an_env_ends_its_own_jail_and_starts_another() -> None:
    env = HarnessEnv(Toy(), harness=Harness(toy_harness().source, trusted=False))
    first = record(play(env, 3, iter(["<answer>x</answer>"])))
    env.close()
    env.close()
    again = record(play(env, 3, iter(["<answer>x</answer>"])))
    env.close()
    assert first == again
