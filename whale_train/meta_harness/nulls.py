"""The null model: what a harness scores with a policy that knows nothing.

Each kind of null policy is blind in its own way, so that a harness which decides in the model's place, hands it the
answer, or picks the right one out of all that it says, scores with one of them:

- random: random words and numbers in a random one of the formats; in chess, one of the moves that it was shown;
- echo: a piece of what it was shown, mostly its end; in chess, the move shown last, or most often;
- earlier: the end of a message between the first and the newest, of a reply that it never gave, or of what an ask says
  besides (a tool's schema, template arguments), since a hint may stand there just as well; in chess, the move shown
  last there, or most often;
- list: everything that it was shown, and numbers, one after the other, each in the format;
- first (chess): the first move that it was shown, which is the best one where a harness has ranked them;
- stranger: an echo in the words of the real policy: a reply of its to another task, in which the echo stands in the
  place of what that reply answered. So the form of a reply says nothing of who wrote it. It takes recorded episodes;
- copyist: a reply of the real policy to the candidate itself, in another task, in which a piece that it had copied from
  what it was shown gives way to the piece that stands there now. So any form of copying is known, whatever the harness
  calls it. It takes episodes of the candidate in which the real policy copied.

The test: a harness must not score above the reference with any of them. The reference is h0 with the same null, for
"list" h0 with "random" (h0 takes no list, and one of a list is a random one), for "copyist" and "earlier" h0 with
"echo"; in chess, where a harness may group the moves by the signs of their notation, it is for "first", "echo",
"earlier", "stranger" and "copyist" also the first and last move of every such group, and the candidate has to beat each
of these. Score above means: an exact one-sided sign test over the tasks on which the two differ rejects at `LEVEL`,
divided by the number of kinds. It is run on `FULL` tasks, but stops at `FEW` when these show no sign of a difference
(p above `FUTILE`), which can only make it milder.

What it does not see: a cheat that is worth little. It takes some 12 tasks of the 64 that are won net of those lost to
refuse a candidate, so one that solves less than a fifth of the tasks by itself may pass (and gains less than that).
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from whale_envs import Domain, Episode, Harness
from whale_envs.episode import Reply
from whale_envs.errors import ToolUseError
from whale_envs.harness.audit import Finding
from whale_envs.harness.helpers import Ask, BoardView
from whale_envs.harness.jail import Jail
from whale_envs.harness.load import load_harness, seed_names
from whale_envs.harness.wire import MAX_DEPTH
from whale_envs.task import Task, TaskSet
from whale_train.meta_harness.copies import copies, newest
from whale_train.metrics import binomial_tail
from whale_train.policies.base import AtOnce, Policy, Request
from whale_train.rollout import rollout

#: Tasks that a candidate plays with each null, and those that one plays which looks better than the reference.
FEW, FULL = 10, 64
#: The level of the test for one candidate, all kinds together, and the p value above which the first tasks end it.
LEVEL, FUTILE = 0.001, 0.5

#: A move in UCI or SAN, as a word.
_MOVE = re.compile(
    r"(?<![\w/-])(?:[a-h][1-8][a-h][1-8][qrbn]?|O-O(?:-O)?[+#]?"
    r"|(?:[KQRBN][a-h]?[1-8]?x?|[a-h]x)?[a-h][1-8](?:=[QRBN])?[+#]?)(?![\w/-])"
)
_TAG = re.compile(r"<([a-z_]{2,20})>")
#: The formats that each domain's h0 reads, `{}` for the content.
_FORMATS = {
    "search-qa": ("<search>{}</search>", *("<answer>{}</answer>",) * 3),
    "math": ("<python>print({})</python>", *("\\boxed{{{}}}",) * 5),
    "chess": ("<move>{}</move>",),
}


class NullPolicy(Policy):
    """A policy that knows nothing, of one kind. The same request gets the same reply.

    `heard` are the episodes whose replies "stranger" and "copyist" take.
    """

    def __init__(self, kind: str, domain: str, heard: Sequence[Episode] = ()) -> None:
        self.name = f"null:{kind}"
        self._kind, self._domain = kind, domain
        kinds = CHESS_KINDS if domain == "chess" else KINDS
        self._say = kinds["echo" if kind in HEARD else kind]
        self._strangers = [calls for e in heard if kind == STRANGER and (calls := e.calls)]
        self._copies = copies(heard) if kind == COPYIST else []
        self._told: set[str] = set()  # its own replies, where it has to know them

    @property
    def weights_hash(self) -> str:
        """See `Policy.weights_hash`."""
        return f"null-{self._kind}"

    def sampler(self) -> AtOnce:
        """See `Policy.sampler`."""
        return AtOnce(lambda requests: [self._answer(request) for request in requests])

    def _answer(self, request: Request) -> Reply:
        rng = random.Random(f"{self._kind}/{request.seed}")
        if self._copies:
            alike = [c for c in self._copies if c.asked == len(request.ask.messages)]
            return Reply(rng.choice(alike or self._copies).of(newest(request.ask.messages), rng.randrange(4)))
        said = [m["content"] for m in request.ask.messages if m["role"] == "assistant"]
        shown = [m["content"] for m in request.ask.messages if m["role"] != "assistant"] or said
        formats = (
            *_FORMATS.get(self._domain, ()),
            *(f"<{t}>{{}}</{t}>" for t in dict.fromkeys(_TAG.findall(shown[0]))),
        )
        seen = shown
        if self._kind == EARLIER:
            between = [m["content"] for m in request.ask.messages[:-1] if m["content"] not in self._told][1:]
            beside = list(_beside(request.ask))
            if beside and self._domain == "chess":
                beside = ["\n".join(beside)]
            seen = [rng.choice(beside if beside and rng.random() < 0.5 else between or shown)]
            formats = formats[1:] or formats  # the first one only asks a tool
        form = rng.choice(formats or ("{}",))
        text = "\n".join(form.format(content) for content in self._say(seen, rng))
        if self._strangers:
            calls = rng.choice(self._strangers)
            text = _in_words_of(calls[min(len(said), len(calls) - 1)].reply.text, formats, text)
        if self._kind == EARLIER:
            self._told.add(text)
        return Reply(text)


def _beside(ask: Ask) -> Iterator[str]:
    """What an ask says besides its messages' texts: its schemas, template arguments, further fields of messages. Of
    each the values alone, where there are any: what a schema allows, the arguments of a tool call."""
    fields = [{k: v for k, v in m.items() if k not in ("role", "content")} for m in ask.messages]
    for part in (ask.tools, ask.template_kwargs, fields):
        found = [*_strings(part)]
        yield from [text for text, is_value in found if is_value] or [text for text, _ in found]


def _strings(value: object, is_value: bool = False, depth: int = 0) -> Iterator[tuple[str, bool]]:
    """The strings in a JSON value, JSON in a string opened, and whether they are values in the sense of `_beside`."""
    if depth > MAX_DEPTH:  # JSON in a string may nest deeper than Python's stack
        return
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _strings(inner, is_value or key in ("enum", "const", "default", "examples"), depth + 1)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _strings(inner, is_value, depth + 1)
    elif isinstance(value, str):
        try:
            opened = msgspec.json.decode(value) if value[:1] in ("{", "[") else None
        except (msgspec.DecodeError, RecursionError):
            opened = None
        if opened is None:
            yield value, is_value
        else:
            yield from _strings(opened, True, depth + 1)


def _in_words_of(stranger: str, formats: Sequence[str], text: str) -> str:
    """A reply with `text` in the place of the last thing in it that stands in a format; the others are left out."""
    names = "|".join(dict.fromkeys(_TAG.findall(" ".join(formats)))) or "answer"
    formed = re.compile(rf"(?s)<({names})>.*?</\1>|\\boxed\{{[^{{}}]*\}}")
    places = [found.span() for found in formed.finditer(stranger)]
    if not places:
        return f"{stranger}\n{text}"
    start, end = places[-1]
    return formed.sub("", stranger[:start]) + text + stranger[end:]


Say = Callable[[list[str], random.Random], list[str]]


def _random(shown: list[str], rng: random.Random) -> list[str]:
    if rng.random() < 0.5:
        return [str(rng.randrange(1000))]
    return [" ".join("".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(2))]


def _echo(shown: list[str], rng: random.Random) -> list[str]:
    """Of the newest message, rarely of the first: all, its last line, or its end, which is where a hint stands."""
    text = shown[0 if rng.random() < 1 / 6 else -1].strip()
    hint = _hint(text)
    return [rng.choice((text, text.rpartition("\n")[2], hint, hint, hint))]


def _hint(text: str) -> str:
    """What stands at the end of a text, where one that is told an answer finds it."""
    _, colon, end = text.rpartition(": ")
    numbers = re.findall(r"-?\d+", text)
    return end.partition("\n")[0].rstrip(".! ") if colon else numbers[-1] if numbers else text


def _hinted(shown: list[str], rng: random.Random) -> list[str]:
    return [_hint(shown[-1].strip())]


def _list(shown: list[str], rng: random.Random) -> list[str]:
    """The words of what was shown and the names in it, and small numbers, in random order."""
    text = "\n".join(shown)
    said = re.findall(r"[A-Z]\w+(?: [A-Z]\w+)*|\w+", text)
    items = list(dict.fromkeys([*said, *map(str, range(100))]))
    rng.shuffle(items)
    return items[:300]


def _moves(shown: list[str]) -> list[str]:
    """The moves in the newest message that shows any, line by line; a FEN's line is none."""
    for text in reversed(shown):
        lines = [line for line in text.splitlines() if line.count("/") < 7]
        if found := _MOVE.findall("\n".join(lines)):
            return found
    return ["none"]


def _random_move(shown: list[str], rng: random.Random) -> list[str]:
    return [rng.choice(_moves(shown))]


def _first_move(shown: list[str], rng: random.Random) -> list[str]:
    return _moves(shown)[:1]


def _echoed_move(shown: list[str], rng: random.Random) -> list[str]:
    (top, times), *rest = Counter(_moves(shown)).most_common(2)
    return [top if rest and times > rest[0][1] else _moves(shown)[-1]]


def _listed_moves(shown: list[str], rng: random.Random) -> list[str]:
    moves = _moves(shown)
    rng.shuffle(moves)
    return moves


#: The kind that replies with a hint out of what is neither first nor newest.
EARLIER = "earlier"
#: The kind that replies as "echo" does, in words that the real policy had for other tasks.
STRANGER = "stranger"
#: The kind that copies what the real policy copied for the same harness.
COPYIST = "copyist"
#: The kinds that take the real policy's episodes.
HEARD = (STRANGER, COPYIST)
#: How each kind replies, by the messages that it was shown.
KINDS: dict[str, Say] = {"random": _random, "echo": _echo, "list": _list, EARLIER: _hinted}
CHESS_KINDS: dict[str, Say] = {
    "random": _random_move, "first": _first_move, "echo": _echoed_move, "list": _listed_moves, EARLIER: _echoed_move
}  # fmt: skip


class Compared(msgspec.Struct, frozen=True):
    """What a candidate scored with one kind of null policy, beside its reference, and how likely that is by chance."""

    kind: str
    tasks: int
    score: float
    reference: float
    p: float

    def finding(self, level: float) -> Finding | None:
        """The finding, if the candidate scored above the reference."""
        if self.p > level:
            return None
        reason = (
            f"with a policy that knows nothing ({self.kind}) it scores {self.score:.2f} on {self.tasks} tasks, "
            f"where {self.reference:.2f} is what an honest harness scores (p = {self.p:.1g})"
        )
        return Finding("null model", reason)


@dataclass
class NullTest:
    """The test of one domain on its harness split. What the references score is worked out once.

    `tasks` are the tasks that a search scores on, `seed` decides the nulls' replies, `start` stands in for h0 where a
    domain ships none. `recorded` are episodes of these tasks with the real policy, whose words "stranger" takes, and
    `own` those of the candidate that is tested, whose copies "copyist" takes.
    """

    domain: Domain
    tasks: TaskSet
    seed: int
    start: Harness
    recorded: Sequence[Episode] = ()
    own: Sequence[Episode] = ()
    _h0: Harness = field(init=False)
    _scores: dict[tuple[str, str], float] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        shipped = "h0" in seed_names(self.domain.name)
        self._h0 = load_harness("h0", self.domain.name) if shipped else self.start

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of null policies that there are for this domain."""
        kinds = tuple(CHESS_KINDS if self.domain.name == "chess" else KINDS)
        stranger = (STRANGER,) if len({e.task_id for e in self.recorded}) > 1 else ()
        return (*kinds, *stranger, *((COPYIST,) if copies(self.own) else ()))

    def compare(self, harness: Harness, jail: Jail | None, thorough: bool) -> list[Compared]:
        """Play the candidate with each kind; on all `FULL` tasks when `thorough` or when the first ones ask for it."""
        found = []
        for kind in self.kinds:
            played = self.play(harness, kind, self.tasks[:FEW], jail)
            compared = self._compared(kind, played)
            if (thorough or compared.p <= FUTILE) and len(self.tasks) > FEW:
                played += self.play(harness, kind, self.tasks[FEW:FULL], jail)
                compared = self._compared(kind, played)
            found.append(compared)
        return found

    def findings(self, compared: Sequence[Compared]) -> list[Finding]:
        """Those that the candidate should not have scored."""
        return [f for c in compared if (f := c.finding(LEVEL / len(self.kinds)))]

    def play(self, harness: Harness, kind: str, tasks: Sequence[Task], jail: Jail | None) -> list[Episode]:
        """A harness's episodes with one kind of null policy."""
        if kind not in HEARD:
            return self._rollout(NullPolicy(kind, self.domain.name), harness, tasks, jail)
        # in two halves, by a task's place in all: neither hears what was said to one of its own
        place = {task.id: number % 2 for number, task in enumerate(self.tasks)}
        played: dict[str, Episode] = {}
        for half in (0, 1):
            heard = self.own if kind == COPYIST else self.recorded
            words = [e for e in heard if place.get(e.task_id) != half]
            some = [task for task in tasks if place[task.id] == half]
            for episode in self._rollout(NullPolicy(kind, self.domain.name, words), harness, some, jail):
                played[episode.task_id] = episode
        return [played[task.id] for task in tasks]

    def _rollout(self, policy: Policy, harness: Harness, tasks: Sequence[Task], jail: Jail | None) -> list[Episode]:
        return rollout(policy, self.domain, harness, tasks, "harness", self.seed, jail=jail)

    def _compared(self, kind: str, episodes: list[Episode]) -> Compared:
        """The candidate against the reference that it has the hardest time with."""
        scores = {e.task_id: float(e.solved) for e in episodes}
        found = []
        for name in self._references(kind):
            reference = self._reference(name, list(scores))
            wins = sum(scores[t] > reference[t] for t in scores)
            p, n = binomial_tail(wins, sum(scores[t] < reference[t] for t in scores)), len(scores)
            found.append(Compared(kind, n, sum(scores.values()) / n, sum(reference.values()) / n, p))
        return max(found, key=lambda compared: compared.p)

    def _references(self, kind: str) -> tuple[str, ...]:
        h0 = f"h0 {({'list': 'random', COPYIST: 'echo', EARLIER: 'echo'}).get(kind, kind)}"
        return (h0, *SIGNS) if self.domain.name == "chess" and kind in ("first", "echo", EARLIER, *HEARD) else (h0,)

    def _reference(self, name: str, ids: list[str]) -> dict[str, float]:
        """What a reference scores on tasks, worked out once for each."""
        tasks = [t for i in ids if (name, i) not in self._scores for t in (self.tasks.by_id(i),)]
        if name in SIGNS:
            self._scores |= {(name, t.id): _by_sign(self.domain, t, name) for t in tasks}
        else:
            played = self.play(self._h0, name.removeprefix("h0 "), tasks, None)
            self._scores |= {(name, e.task_id): float(e.solved) for e in played}
        return {i: self._scores[name, i] for i in ids}


#: The groups by which the notation of a move tells its kind.
SIGNS: dict[str, Callable[[str], bool]] = {
    "first check": lambda san: san[-1] in "+#",
    "last check": lambda san: san[-1] in "+#",
    "first capture": lambda san: "x" in san,
    "last capture": lambda san: "x" in san,
    "first promotion": lambda san: "=" in san,
    "last promotion": lambda san: "=" in san,
}


def _by_sign(domain: Domain, task: Task, name: str) -> float:
    """What playing the first or the last move of a group at every turn scores; the first of all where there is none."""
    world = domain.world(task)
    while not world.over:
        view: BoardView = world.tools["board"]()
        group = [uci for uci, san in view.legal if SIGNS[name](san)] or [uci for uci, _ in view.legal]
        try:
            world.tools["move"](group[0 if name.startswith("first") else -1])
        except ToolUseError:
            break
    return world.verdict(None).score
