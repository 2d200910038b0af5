"""No episode of a jailed harness can leave a note for another one, neither a later nor a concurrent one.

Each channel is a pair of statements: one that leaves a word, one that sets `x` to what it finds. A channel that works
finds the word again in the same episode, or the test would prove nothing; those that the jail refuses raise.
"""

# ruff: noqa: E501

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_domain import Toy, toy_harness

from whale_envs import Episode, HarnessEnv
from whale_envs.contract import record
from whale_envs.harness.jail import Jail

SOURCE = """
import collections, dataclasses, functools, html, json, random, re, statistics, string, typing
from whale_envs.harness import *

sys = dataclasses.sys
os, gc, ctypes = (sys.modules["importlib"].import_module(n) for n in ("os", "gc", "ctypes"))
LIST, COUNT = [], 0

class Box:
    notes = []

@dataclasses.dataclass
class Data:
    words: list = dataclasses.field(default_factory=list)

def remember(word=None, seen=[]):
    seen.extend([word] if word else [])
    return list(seen)

def outer():
    kept = []
    def inner(word=None):
        kept.extend([word] if word else [])
        return list(kept)
    return inner

closed = outer()

@functools.lru_cache
def cached(word):
    return len(word)

def tried(source):
    try:
        exec(source, globals())
    except Exception as error:
        return "raised " + type(error).__name__
    return repr(x)[:500]

def run(task, tools):
    seen = [user(task.question)]
    while True:
        reply = yield seen
        if reply.text == "stop":
            return [m["content"] for m in seen]
        seen.append(user(tried("x = None\\n" + reply.text)))
"""

#: channel: (how to leave the word W, how to look for it)
KEPT = {
    "a global": ("COUNT = W", "x = COUNT"),
    "a list": ("LIST.append(W)", "x = LIST"),
    "a class attribute": ("Box.notes.append(W); Box.other = W", "x = Box.notes, getattr(Box, 'other', 0)"),
    "a default argument": ("remember(W)", "x = remember()"),
    "a default value": ("remember.__defaults__ = (W, [])", "x = remember.__defaults__"),
    "a dataclass's field": ("Data.__init__.__defaults__ = (W,)", "x = Data.__init__.__defaults__ == (W,)"),
    "a closure": ("closed(W)", "x = closed()"),
    "a function's attribute": ("run.note = W", "x = vars(run)"),
    "a function's code": ("cached.__wrapped__.__code__ = (lambda w: 77).__code__", "x = cached('ab c')"),
    "a cache": ("cached(W)", "x = cached.cache_info()"),
    "an annotation": ("tried.__annotations__['w'] = W", "x = tried.__annotations__"),
    "an allowed module": ("json.note = re.note = W", "x = vars(json).get('note'), vars(re).get('note')"),
    "a module's function": ("html.escape = lambda s: W", "x = html.escape('<')"),
    "a module's class": ("json.JSONEncoder.item_separator = W", "x = json.dumps([1, 2])"),
    "a constant of a module": ("string.digits = W", "x = string.digits"),
    "a counter": ("collections.Counter.note = W", "x = vars(collections.Counter).get('note')"),
    "the helpers": ("user.__globals__['words'] = W", "x = user.__globals__['words'] == W"),
    "the helpers' file": ("sys.modules['whale_envs.harness.helpers'].W = W", "x = dir(sys.modules[user.__module__])"),
    "a helper's default": ("Passage.head.__defaults__ = (W,)", "x = Passage.head.__defaults__"),
    "a view's class": ("TaskView.note = W", "x = vars(TaskView).get('note')"),
    "the runtime": ("sys.modules['whale_envs.harness.wire'].MAX_CHARS = 7e9", "x = sys.modules['whale_envs.harness.wire'].MAX_CHARS"),
    "the allowed imports": ("sys.modules['whale_envs.harness.namespace'].ALLOWED_IMPORTS = W", "x = len(sys.modules['whale_envs.harness.namespace'].ALLOWED_IMPORTS)"),
    "the module table": ("sys.modules['note'] = W", "x = sys.modules.get('note')"),
    "the path": ("sys.path.append(W)", "x = sys.path"),
    "the arguments": ("sys.argv.append(W)", "x = sys.argv[-1] == W"),
    "the builtins": ("sys.modules['builtins'].note = W", "x = vars(sys.modules['builtins']).get('note')"),
    "a builtin": ("sys.modules['builtins'].ascii = W", "x = sys.modules['builtins'].ascii"),
    "the recursion limit": ("sys.setrecursionlimit(1234)", "x = sys.getrecursionlimit()"),
    "the switch interval": ("sys.setswitchinterval(0.5)", "x = sys.getswitchinterval()"),
    "a limit on digits": ("sys.set_int_max_str_digits(5000)", "x = sys.get_int_max_str_digits()"),
    "a hook": ("sys.unraisablehook = sys.displayhook", "x = sys.unraisablehook is sys.displayhook"),
    "the cache of patterns": ("re.compile(W)", "x = [k for k in re._cache if W in k]"),
    "the episode's random": ("random.seed(W)", "x = random.random()"),
    "the global random": ("sys.modules['random'].seed(W)", "x = sys.modules['random'].random()"),
    "the decimal context": ("sys.modules['decimal'].getcontext().prec = 77", "x = sys.modules['decimal'].getcontext().prec"),
    "the warnings": ("sys.modules['warnings'].filters.insert(0, W)", "x = W in sys.modules['warnings'].filters"),
    "the import system": ("sys.meta_path.append(W)", "x = W in sys.meta_path"),
    "the codecs": ("sys.modules['encodings.aliases'].aliases[W] = W", "x = W in sys.modules['encodings.aliases'].aliases"),
    "an abstract class": ("collections.abc.Sized.register(Box)", "x = issubclass(Box, collections.abc.Sized)"),
    "the environment": ("os.environ[W] = W", "x = W in os.environ"),
    "the environment of C": ("os.putenv(W, W)", "x = (g := ctypes.CDLL(None).getenv, setattr(g, 'restype', ctypes.c_char_p), g(W.encode()))[2]"),
    "garbage": ("b = Box(); b.b = b; b.word = W; del b", "x = [o.word for o in gc.get_objects() if type(o).__name__ == 'Box']"),
    "frozen objects": ("gc.set_threshold(77)", "x = gc.get_threshold()"),
    "what is inherited": ("d = json.__doc__; ctypes.memmove(id(d) + sys.getsizeof(d) - len(d) - 1, W.encode(), len(W))", "x = json.__doc__[:9]"),
    "a signal handler": ("sys.modules['signal'].signal(10, sys.modules['signal'].SIG_IGN)", "x = sys.modules['signal'].getsignal(10)"),
    "the alarm": ("sys.modules['signal'].setitimer(0, 1000)", "x = sys.modules['signal'].getitimer(0)[0] > 0"),
    "the descriptors": ("[tried(f'os.dup2({n}, {n + 20})') for n in range(20)]", "x = [n for n in range(64) if not tried(f'os.get_inheritable({n})').startswith('raised')][1:]"),
    "shared memory": ("mmap = ctypes.CDLL(None).mmap; mmap.restype = ctypes.c_void_p; m = mmap(None, 4096, 3, 0x21, -1, None); ctypes.memmove(m, W.encode(), 9)", "x = 'm' in globals() and ctypes.string_at(m, 9)"),
}  # fmt: skip

#: Waits or wakes on a word of libc's code, whose pages all processes share; x is an errno.
FUTEX = (
    "(c := ctypes.CDLL(None, use_errno=True), a := ctypes.cast(c.getpid, ctypes.c_void_p).value & ~4095, "
    "c.syscall(202, ctypes.c_void_p(a), {operation}, 0, None, None, 0), ctypes.get_errno())[3] == 1 and os.fork()"
)

REFUSED = {
    "a file": "os.open('/tmp/whale-note', os.O_CREAT | os.O_RDWR)",
    "a file in memory": "os.open('/dev/shm/whale-note', os.O_CREAT | os.O_RDWR)",
    "an anonymous file": "os.memfd_create('note')",
    "a folder": "os.mkdir('/tmp/whale-note')",
    "the working directory": "os.chdir('/usr')",
    "a pipe": "os.pipe()",
    "a socket": "sys.modules['_socket'].socket(1, 1)",
    "standard output": "os.write(1, b'note')",
    "standard input": "os.lseek(0, 5, 0)",
    "the mask for files": "os.umask(0o77) or os.stat('/')",
    "a thread": "sys.modules['_thread'].start_new_thread(int, ())",
    "a process": "os.fork()",
    "a wait for its sibling": FUTEX.format(operation=0),
    "a call to its sibling": FUTEX.format(operation=1),
    "a signal to its sibling": "os.kill(os.getpid() + 1, 0)",
    "the priority": "os.nice(1)",
    "the processors": "os.sched_setaffinity(0, {0})",
    "a limit": "sys.modules['resource'].setrlimit(7, (9, 9))",
    "the group": "os.setpgid(0, 0)",
    "another's memory": "os.open(f'/proc/{os.getpid() + 1}/mem', os.O_RDWR)",
}
WORD = "W0RD"


@pytest.fixture(scope="module")
def jail() -> Iterator[Jail]:
    made = Jail(toy_harness(SOURCE, trusted=False))
    yield made
    made.close()


@pytest.fixture(scope="module")
def clean() -> Iterator[Jail]:
    """A jail in which nobody leaves anything."""
    made = Jail(toy_harness(SOURCE, trusted=False))
    yield made
    made.close()


def begin(jail: Jail, seed: int = 0) -> HarnessEnv:
    env = HarnessEnv(Toy(), harness=jail.harness, jail=jail)
    env.reset(seed=seed)
    return env


def say(env: HarnessEnv, source: str) -> str:
    """What the harness shows after it has executed `source`, in which W is the word."""
    messages, *_ = env.step(f"W = {WORD!r}\n{source}")
    assert env.episode is not None and env.episode.failure is None, env.episode
    return str(messages[-1]["content"])


@pytest.mark.parametrize("channel", KEPT)
def test_a_note_is_found_in_its_own_episode_alone(jail: Jail, clean: Jail, channel: str) -> None:
    leave, find = KEPT[channel]
    other = begin(clean)
    nothing = say(other, find)
    other.close()
    before, writer = begin(jail), begin(jail)
    assert not say(writer, leave).startswith("raised")
    own = say(writer, find)
    assert own != nothing and not own.startswith("raised"), "the channel does not work, so it proves nothing"
    during = begin(jail)
    assert say(before, find) == say(during, find) == nothing
    writer.close()
    after = begin(jail)
    assert say(after, find) == nothing
    for env in (before, during, after):
        env.close()


def test_what_could_be_shared_is_refused(jail: Jail) -> None:
    for channel, attempt in REFUSED.items():
        env = begin(jail)
        said = say(env, f"x = {attempt}")
        env.close()
        assert said in ("'raised PermissionError'", "raised PermissionError", "raised OSError", "raised RuntimeError", "raised ValueError"), (channel, said)  # fmt: skip


LEAVE = "\n".join(
    f"tried({leave!r})" for name, (leave, _) in KEPT.items() if name not in ("a builtin", "the descriptors")
)
FIND = f"x = [tried(find) for find in {[find for _, find in KEPT.values()]!r}]"


def alone(jail: Jail, seed: int) -> bytes:
    """An episode that looks for notes, leaves all and looks again."""
    env = begin(jail, seed)
    for text in steps(seed):
        env.step(text)
    env.close()
    assert env.episode is not None and env.episode.failure is None
    return record(env.episode)


def steps(seed: int) -> list[str]:
    return [f"W = 'word{seed}'\n{source}" for source in (FIND, LEAVE, FIND)] + ["stop"]


@settings(max_examples=5, deadline=None)
@given(st.integers(2, 6), st.randoms(use_true_random=False))
def test_order_and_company_change_nothing(jail: Jail, clean: Jail, count: int, draw: random.Random) -> None:
    expected = [alone(clean, seed) for seed in range(count)]
    todo = {seed: steps(seed) for seed in range(count)}
    envs: dict[int, HarnessEnv] = {}
    records: dict[int, Episode] = {}
    while todo:
        seed = draw.choice(list(todo))
        if seed not in envs:
            envs[seed] = begin(jail, seed)
            continue
        envs[seed].step(todo[seed].pop(0))
        if not todo[seed]:
            del todo[seed]
            episode = envs[seed].episode
            assert episode is not None
            records[seed] = episode
            envs[seed].close()
    assert [record(records[seed]) for seed in range(count)] == expected
