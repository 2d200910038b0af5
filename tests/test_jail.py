"""A jail contains what a harness does, and no episode is lost to another's failure."""

from __future__ import annotations

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
from jailed import MIXED, QUICK, REACH, step
from toy_domain import Toy, toy_harness

from whale_envs import Harness, HarnessEnv
from whale_envs.contract import play, record
from whale_envs.harness import jail_process
from whale_envs.harness.jail import Jail, JailedSession, JailLimits
from whale_envs.sandbox import isolation


@pytest.fixture
def jail() -> Iterator[Jail]:
    made = Jail(toy_harness(MIXED, trusted=False), QUICK)
    yield made
    made.close()
    made.close()


@pytest.mark.parametrize(
    ("misdeed", "message"),
    [
        ("hang", "TimeoutError: ran for more than 0.3 s between two model calls"),
        ("die", "its process ended (exit status 3)"),
        ("overflow", "its process ended (killed by SIGSEGV)"),
        ("fill", "MemoryError"),
    ],
)
def test_an_episode_that_takes_its_worker_down_fails_alone(misdeed: str, message: str) -> None:
    seconds = QUICK.seconds if misdeed == "hang" else 20.0  # memory takes a while to fill
    jail = Jail(toy_harness(MIXED, trusted=False), JailLimits(seconds=seconds, memory_mb=QUICK.memory_mb))
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
    jail.close()


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
