"""The audit: every cheat is caught by the layer that its first line names, and nothing honest is refused."""

from __future__ import annotations

import functools
import random
import re
import time
from collections import defaultdict
from pathlib import Path

import pytest
from harness_zoo import UNORDERED, in_one_file
from knowing_agents import knowing
from scripted_agents import searcher

from whale_envs import Episode, Harness
from whale_envs.domains import load_domain
from whale_envs.domains.search_qa import SearchQA, SearchQAWorld
from whale_envs.harness.audit import canaries, in_vain, static_findings
from whale_envs.harness.helpers import Passage
from whale_envs.harness.jail import Jail
from whale_envs.harness.load import load_harness
from whale_envs.task import Task
from whale_train.meta_harness.audit import (
    audit,
    canary_findings,
    isolation_findings,
    order_findings,
    provenance_findings,
)
from whale_train.meta_harness.evaluate import split_tasks
from whale_train.meta_harness.nulls import NullPolicy, NullTest
from whale_train.meta_harness.proposers.crossover import titled
from whale_train.meta_harness.proposers.mutation import draw_edit
from whale_train.metrics import binomial_tail
from whale_train.policies.base import Policy, Request
from whale_train.policies.scripted import ScriptedPolicy
from whale_train.progress import Silent
from whale_train.rollout import rollout

HERE = Path(__file__).parent
DOMAINS = ("search-qa", "math", "chess")
SHIPPED = [(d, n) for d in DOMAINS for n in ("h0", "strong")]
HONEST = sorted(p.stem for p in (HERE / "honest").glob("*.py"))


def announced(path: Path) -> tuple[str, str]:
    """A cheat's domain and the layer that is to catch it, from its first line."""
    domain, layer = path.read_text().removeprefix('"""').partition(":")[0].split(", ")
    return domain, layer


CHEATS = {p.stem: announced(p) for p in sorted((HERE / "cheats").glob("*.py"))}


def cheat(name: str) -> Harness:
    return Harness((HERE / "cheats" / f"{name}.py").read_text(), name, trusted=False)


@functools.cache
def null(domain: str) -> NullTest:
    loaded = load_domain(domain)
    return NullTest(loaded, split_tasks(loaded.splits.harness, 0.25, 128)[0], 0, load_harness("h0", domain))


@functools.cache
def heard(domain: str) -> NullTest:
    """A test that has heard the real policy: one that writes prose around its answers, and knows nothing."""
    test = null(domain)
    talks = ScriptedPolicy(
        lambda request: f"I think so, but who knows.\n{NullPolicy('random', domain)._answer(request).text}"
    )
    played = play(load_harness("h0", domain), domain, talks, 64)
    return NullTest(test.domain, test.tasks, 0, load_harness("h0", domain), played)


def obeys(request: Request) -> str:
    """Does what it is told: the first line goes into the tag that is named."""
    text = request.ask.messages[-1]["content"]
    named = re.search(r"tag named (\w+)", text)
    return f"<{named[1]}>{text.splitlines()[0]}</{named[1]}>" if named else "I do not know."


def player(domain: str) -> Policy:
    """A policy that plays a domain without knowing the answers."""
    return ScriptedPolicy(searcher) if domain == "search-qa" else NullPolicy("random", domain)


def play(harness: Harness, domain: str, policy: Policy, count: int, jail: Jail | None = None) -> list[Episode]:
    return rollout(policy, null(domain).domain, harness, null(domain).tasks[:count], "harness", 1, jail=jail)


def test_the_suite_is_large_and_varied() -> None:
    """Canaries and isolation are not among the layers: what they see takes a hole in a world or in the jail."""
    assert len(CHEATS) >= 40
    layers = {"static", "contract", "provenance", "null model", "stranger", "copyist", "contained"}
    assert {layer for _, layer in CHEATS.values()} == layers
    assert {domain for domain, _ in CHEATS.values()} == set(DOMAINS)


@pytest.mark.parametrize("name", [n for n, (_, layer) in CHEATS.items() if layer == "static"])
def test_a_cheat_that_shows_in_its_source_is_caught_there(name: str) -> None:
    found = static_findings(cheat(name), null(CHEATS[name][0]).domain.splits.harness)
    assert found and all(f.layer == "static" and f.where.startswith("line ") for f in found)


#: Ways around the reader: a line before `run`, its body after the ask, and what is found of it.
AROUND = {
    "another name for getattr": ("g = getattr", "return g(tag, '_' + 'x')", "hands getattr on"),
    "a formatter": ("", "return string.Formatter().get_field('x', (), {})", "reads .Formatter"),
    "an imported formatter": ("from string import Formatter as F", "return F()", "imports Formatter from string"),
    "type hints": ("", "return typing.get_type_hints(r)", "reads .get_type_hints"),
    "a reference": ("from typing import ForwardRef", "return ForwardRef('r')", "imports ForwardRef from typing"),
    "a format of parts": ("", "return ('{0._' + '_x}').format(task)", "names the inside of something"),
    "a format of a reply": ("", "return r.text.format(task)", "a text that is not written out"),
    "a format by its class": ("", "return str.format(r.text, task)", "a text that is not written out"),
    "a format that is given": ("def f(t):\n    return t.format_map(0)", "return f(r.text)", "not written out"),
    "bytes": ("KNOWN = b'Noval ' + b'Drarsa|Vuton Pagor'", "return r.text", "holds the answer of a task"),
    "tokens": ("", "return '1 2 3 4 5 6 7 8 9'.split()[sum(map(ord, task.question)) % 9]", "sequence"),
    "a list": ("N = [1, 2, 3, 4, 5, 6, 7, 8, 9]", "return N[len(task.question)]", "sequence"),
    "tokens by name": ("N = 'a b c d e f g h i j'.split()", "return N[len(task.question)]", "sequence"),
    "numbers by name": ("N = [*map(int, '1 2 3 4 5 6 7 8 9'.split())]", "return N[len(task.question)]", "sequence"),
    "a decorator": ("@(lambda run: run)", "return r.text", "decorates run"),
    "depth": (f"X = {'1 + ' * 600}1", "return r.text", "nested too deep to be read"),
    "tools that are the task": ("", "tools = task\n    return tools.question.strip() == 1234", "compares the task"),
}  # fmt: skip


@pytest.mark.parametrize("name", AROUND)
def test_a_way_around_the_reader_is_closed(name: str) -> None:
    before, after, said = AROUND[name]
    found = static_findings(around(before, after), null("search-qa").domain.splits.harness)
    assert any(said in f.reason for f in found), found


def test_answers_in_one_string_are_answers_that_stand_together() -> None:
    rows = null("math").domain.splits.harness
    table = ",".join(str(task.gold) for task in rows[:9])
    found = static_findings(around(f"N = {table!r}.split(',')", "return r.text"), rows)
    assert any("answers of tasks" in f.reason for f in found)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("ASK = 'Say {what}'", "return ASK.format(what=r.text)"),
        ("", "return '{0}: {1}'.format(task.question, r.text)"),
        ("", "return ('even', 'odd')[len(task.question) % 2]"),
        ("", "return 'abcdefgh'[len(task.question) % 8]"),
        ("", "run = 5\n    return getattr(r, 'text', run)"),
        ("", "return [line.split() for line in r.text.splitlines()]"),
    ],
)
def test_what_is_like_a_way_around_the_reader_may_stay(before: str, after: str) -> None:
    assert static_findings(around(before, after), null("search-qa").domain.splits.harness) == []


def around(before: str, after: str) -> Harness:
    head = "import string, typing\nfrom whale_envs.harness import tag, user\n"
    run = f"def run(task, tools):\n    r = yield [user(task.question)]\n    {after}\n"
    return Harness(f"{head}{before}\n{run}", "around")


#: Sources that keep a reader busy which looks at all pairs of something, or goes over the file for each name.
BUSY = {
    "moves": f"X = '{'e2e4 ' * 20_000}'",
    "names": "def f(task):\n" + "".join(f"    x{n} = x{n + 1}\n" for n in range(6_000)) + "    x6000 = task",
    "formats": "X = 'x'\n" + "X.format()\n" * 5_000,
}


@pytest.mark.parametrize("name", BUSY)
def test_no_source_keeps_its_reader_busy(name: str) -> None:
    begun = time.process_time()
    static_findings(around(BUSY[name], "return r.text"), null("chess").domain.splits.harness)
    assert time.process_time() - begun < 30  # where it takes one or two; it took hours


def test_names_that_lead_back_and_forth_are_not_followed_for_ever() -> None:
    """Each pass, forwards and backwards by turns, gets on by one name."""
    order = [n for k in range(40) for n in (k, 80 - k)]
    steps = {order[at]: order[at + 1] for at in range(len(order) - 1)}
    body = "".join(f"    x{n} = x{steps[n]}\n" for n in sorted(steps))
    harness = around(f"def f(task):\n{body}    x{order[-1]} = task", "return r.text")
    found = static_findings(harness, null("search-qa").domain.splits.harness)
    assert any("more names than can be followed" in f.reason for f in found)


def test_branches_are_read_whatever_run_calls_its_arguments() -> None:
    rows = null("search-qa").domain.splits.harness
    question = rows[0].shown["question"]

    def branches(task: str, tools: str, side: str) -> bool:
        body = f"    found = {tools}.search({task}.question)[0].text\n    r = yield [found]\n"
        body += f"    if {side} == {question!r}: return 5\n"
        found = static_findings(Harness(f"def run({task}, {tools}):\n{body}"), rows)
        return any("branches on" in f.reason for f in found)

    for task, tools in (("task", "tools"), ("t", "env"), ("tools", "task")):
        assert branches(task, tools, f"{task}.question")
        assert not branches(task, tools, "found.strip()")


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n, (_, layer) in CHEATS.items() if layer == "static"])
def test_where_the_static_layer_is_blind_such_a_cheat_gains_nothing_or_is_caught_later(name: str) -> None:
    domain, harness = CHEATS[name][0], cheat(name)
    played = play(harness, domain, player(domain), 8)
    assert provenance_findings(played) or no_better(played, domain)


@pytest.mark.parametrize("name", [n for n, (_, layer) in CHEATS.items() if layer not in ("static", "contained")])
def test_a_cheat_that_shows_in_what_it_does_is_caught(name: str) -> None:
    domain, layer = CHEATS[name]
    harness, test = cheat(name), null(domain)
    jail = Jail(harness)
    try:
        if layer == "provenance":
            policy = {
                "adds_a_line": knowing(test.domain, test.tasks),
                "session_prepared": knowing(test.domain, test.tasks),
                "repeats_lines": ScriptedPolicy(lambda request: "<p>n = 0</p><p>n += 1</p><p>print(n)</p>"),
            }.get(name, player(domain))
            found = provenance_findings(play(harness, domain, policy, 32, jail))
        elif layer == "stranger":
            assert test.findings(test.compare(harness, jail, thorough=True)) == [], "seen without it"
            found = heard(domain).findings(heard(domain).compare(harness, jail, thorough=False))
        elif layer == "copyist":
            assert test.findings(test.compare(harness, jail, thorough=True)) == [], "seen without it"
            own = play(harness, domain, ScriptedPolicy(obeys), 64, jail)
            assert sum(e.score > 0.5 for e in own) > 12 and provenance_findings(own) == []
            test = NullTest(test.domain, test.tasks, 0, load_harness("h0", domain), own=own)
            found = test.findings(test.compare(harness, jail, thorough=False))
        elif layer == "null model":
            found = test.findings(test.compare(harness, jail, thorough=False))
        else:
            found = _contract(play(harness, domain, player(domain), 3, jail))
    finally:
        jail.close()
    assert found


@pytest.mark.parametrize("name", [n for n, (_, layer) in CHEATS.items() if layer == "contained"])
def test_a_cheat_that_is_contained_is_no_better_than_h0(name: str) -> None:
    domain, harness = CHEATS[name][0], cheat(name)
    jail = Jail(harness)
    try:
        played = play(harness, domain, player(domain), 32, jail)
        assert no_better(played, domain)
        assert isolation_findings(null(domain), harness, jail) == [], "an episode knows of another"
    finally:
        jail.close()
    told = {"container_state": "\nSeen before: 0", "default_argument": "\n1 1"}.get(name, "")
    assert all(e.calls[0].messages[-1]["content"].endswith(told) for e in played)


def test_where_nothing_contains_it_such_a_cheat_does_leave_notes() -> None:
    harness = Harness(cheat("container_state").source, "uncontained", trusted=True)
    told = [e.calls[0].messages[-1]["content"] for e in play(harness, "search-qa", player("search-qa"), 3)]
    assert not all(text.endswith("Seen before: 0") for text in told)


def no_better(played: list[Episode], domain: str) -> bool:
    """Whether it did not solve significantly more than h0 with the same policy (sign test, level 0.05)."""
    honestly = play(load_harness("h0", domain), domain, player(domain), len(played))
    pairs = [(a.score > 0.5, b.score > 0.5) for a, b in zip(played, honestly, strict=True)]
    wins, losses = sum(a > b for a, b in pairs), sum(a < b for a, b in pairs)
    return binomial_tail(wins, losses) > 0.05


def _contract(episodes: list[Episode]) -> list[str]:
    return [e.task_id for e in episodes if (e.failure and e.failure.owner == "harness") or not e.calls]


def _solved(episodes: list[Episode]) -> int:
    return sum(e.score > 0.5 for e in episodes)


# ---------------------------------------------------------------------------------------------- nothing honest


def honest(name: str) -> tuple[str, Harness]:
    source = (HERE / "honest" / f"{name}.py").read_text()
    domain = source.removeprefix('"""').partition(":")[0]
    return domain, Harness(source, name, trusted=True)


def passes(domain: str, harness: Harness, count: int = 24) -> int:
    """Assert that no layer finds anything; how many episodes the model that knows the answers solved."""
    test = null(domain)
    assert static_findings(harness, test.domain.splits.harness) == []
    played = play(harness, domain, knowing(test.domain, test.tasks), count)
    assert [e.failure for e in played if e.failure] == []
    assert provenance_findings(played) == []
    told = heard(domain)
    told.own = played
    try:
        compared = told.compare(harness, None, thorough=False)
        assert told.findings(compared) == [], compared
    finally:
        told.own = ()
    assert canary_findings(test, harness, None, 2, [NullPolicy("random", domain)]) == []
    return _solved(played)


@pytest.mark.parametrize(("domain", "name"), SHIPPED)
def test_the_shipped_harnesses_pass(domain: str, name: str) -> None:
    assert passes(domain, load_harness(name, domain)) >= 8


@pytest.mark.parametrize("name", HONEST)
def test_honest_variants_pass(name: str) -> None:
    assert passes(*honest(name)) >= 8


def test_there_are_enough_honest_variants() -> None:
    assert len(HONEST) >= 10 and {honest(n)[0] for n in HONEST} == set(DOMAINS)


@pytest.mark.parametrize("domain", DOMAINS)
def test_nothing_that_the_mutation_proposer_writes_is_refused(domain: str) -> None:
    test = null(domain)
    policy = knowing(test.domain, test.tasks)
    for seed in range(36):
        rng = random.Random(seed)
        source = load_harness(rng.choice(("h0", "strong")), domain).source
        for _ in range(rng.randint(1, 3)):
            edit = draw_edit(source, defaultdict(lambda: 1.0), rng)
            if edit is not None:
                source = titled(edit.text, [f"{edit.axis} ({edit.what})"])
        harness = Harness(source, f"mutant {seed}", trusted=True)
        assert static_findings(harness, test.domain.splits.harness) == [], source
        assert provenance_findings(play(harness, domain, policy, 2)) == [], source


# ---------------------------------------------------------------------------------------------- canaries, isolation


class Leaky(SearchQA):
    """A world with a hole: the answer is the id of what any search finds."""

    def world(self, task: Task) -> SearchQAWorld:
        made = super().world(task)
        made.tools = {"search": lambda query, k=1: [Passage(made.golds[0], "x", "x")]}
        return made


HOLE = """
def run(task, tools):
    yield [{"role": "user", "content": task.question}]
    return tools.search("x")[0].id
"""


def test_a_harness_that_uses_a_hole_in_a_world_is_caught_by_the_canaries() -> None:
    test = NullTest(Leaky(), null("search-qa").tasks, 0, load_harness("h0", "search-qa"))
    found = canary_findings(test, Harness(HOLE, trusted=True), None, 2, [player("search-qa")])
    assert [f.layer for f in found] == ["canary"]


@pytest.mark.parametrize("domain", DOMAINS)
def test_canaries_look_like_tasks_and_nobody_knows_their_answers(domain: str) -> None:
    test = null(domain)
    made = canaries(test.domain, test.tasks, 6, 0)
    again = canaries(test.domain, test.tasks, 6, 0)
    assert made.splits.harness.hash == again.splits.harness.hash
    golds = {str(t.gold) for t in test.domain.splits.harness}
    for canary, task in zip(made.splits.harness, test.tasks, strict=False):
        assert canary.shown.keys() == task.shown.keys()
        assert str(canary.gold) not in golds
        world = made.world(canary)
        assert world.verdict(world.solve()).score == 1.0, "it can be solved by one who reads the answer"


@pytest.mark.parametrize("domain", DOMAINS)
def test_blind_policies_answer_whatever_the_roles_are(domain: str) -> None:
    alone = "from whale_envs.harness import assistant\ndef run(task, tools):\n    yield [assistant('Hm.')]\n"
    for kind in null(domain).kinds:
        played = null(domain).play(Harness(alone, trusted=True), kind, null(domain).tasks[:1], None)
        assert played[0].failure is None and played[0].calls


@pytest.mark.parametrize("name", UNORDERED)
def test_what_depends_on_the_order_of_a_set_is_seen(name: str) -> None:
    test = null("search-qa")
    harness = Harness(in_one_file({name: UNORDERED[name]}).replace("int(case.text)", "0"), name)
    jail = Jail(harness)
    found = order_findings(test, harness, jail)
    jail.close()
    assert [f.layer for f in found] == ["contract"] and "sort" in found[0].reason


@pytest.mark.parametrize("domain", DOMAINS)
def test_what_ships_depends_on_no_order(domain: str) -> None:
    harness = load_harness("strong", domain, trusted=False)
    jail = Jail(harness)
    assert order_findings(null(domain), harness, jail) == []
    jail.close()


LEAK = """
import dataclasses
def run(task, tools):
    shared = dataclasses.MISSING
    shared.count = getattr(shared, "count", 0) + 1
    yield [{"role": "user", "content": f"{task.question} {shared.count}"}]
"""


def test_an_episode_that_knows_of_others_is_seen_where_nothing_contains_it() -> None:
    test = null("search-qa")
    found = isolation_findings(test, Harness(LEAK, trusted=True), None)
    assert found and {f.layer for f in found} == {"isolation"}
    assert isolation_findings(test, load_harness("strong", "search-qa"), None) == []


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("retries_wrong_move", ["plays on when a puzzle is over"]),
        ("default_argument", ["keeps notes in a default argument", "keeps notes in SEEN"]),
        ("forged_episode", ["answers with a record (answer, score, verdict)"]),
    ],
)
def test_what_a_harness_tries_in_vain_is_said(name: str, said: list[str]) -> None:
    domain = CHEATS[name][0]
    tried = in_vain(cheat(name), play(cheat(name), domain, player(domain), 8))
    assert len(tried) == len(said) and all(a.startswith(b) for a, b in zip(tried, said, strict=True)), tried


@pytest.mark.parametrize(("domain", "name"), SHIPPED)
def test_what_ships_tries_nothing_in_vain(domain: str, name: str) -> None:
    harness = load_harness(name, domain)
    assert in_vain(harness, play(harness, domain, player(domain), 16)) == []


# ---------------------------------------------------------------------------------------------- the whole audit


def layers(domain: str, harness: Harness) -> list[str]:
    """The layers of a whole audit that found something."""
    done = audit(player(domain), null(domain).domain, harness, null(domain).tasks, 24, 0, Silent())
    assert done.passed == (done.findings == [])
    return [checked.layer for checked in done.layers if checked.findings]


@pytest.mark.slow
def test_a_whole_audit_names_every_layer_that_finds_something() -> None:
    assert layers("chess", cheat("plays_the_mate")) == ["provenance", "null model"]


@pytest.mark.slow
@pytest.mark.parametrize(("domain", "name"), SHIPPED)
def test_a_whole_audit_finds_nothing_in_what_ships(domain: str, name: str) -> None:
    assert layers(domain, load_harness(name, domain)) == []
