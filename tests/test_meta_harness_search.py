"""The harness phase: what it finds, what it refuses, what it costs, and that a kill anywhere changes nothing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from scripted_agents import searcher
from search_runs import CONFIG, H0, Told, files, rewording, run

from whale_envs import Domain, Harness, UserError
from whale_envs.domains import load_domain
from whale_train.ledger import Ledger
from whale_train.meta_harness import archive as archive_module
from whale_train.meta_harness import search as search_module
from whale_train.meta_harness.archive import Archive
from whale_train.meta_harness.evaluate import score_shadow, split_tasks
from whale_train.meta_harness.gate import gate, gate_episodes
from whale_train.meta_harness.proposers.base import Proposal, ProposerError
from whale_train.meta_harness.proposers.mutation import MutationProposer
from whale_train.meta_harness.proposers.scripted import ScriptedProposer
from whale_train.meta_harness.search import SearchSettings, search
from whale_train.policies.base import Request
from whale_train.policies.scripted import ScriptedPolicy
from whale_train.progress import Silent

pytestmark = pytest.mark.usefixtures("no_fsync")


@pytest.fixture(scope="module")
def domain() -> Domain:
    return load_domain("search-qa")


# ---------------------------------------------------------------------------------------------- what it finds


def test_it_finds_what_helps_and_the_shadow_score_agrees(domain: Domain, tmp_path: Path) -> None:
    config = SearchSettings(rounds=8, candidates=3, tasks=48, backoff=0)
    accepted, policy, told = run(domain, tmp_path, config=config)
    archive = Archive(tmp_path / "archive", "search-qa")
    key = archive.phase.score_key  # type: ignore[union-attr]
    assert archive[accepted.hash].scores[str(key)].mean > archive[H0.hash].scores[str(key)].mean + 0.15
    assert not accepted.trusted
    ledger = Ledger(tmp_path / "ledger.jsonl")
    before, after = (
        score_shadow(policy, domain, h, config.shadow, 9, ledger, told, "shadow", tmp_path / "shadow", repeats=2)
        for h in (H0, accepted)
    )
    assert after.score.mean > before.score.mean + 0.1
    assert all(len(repeats) == 2 for repeats in after.scores.values())
    assert ledger.rollouts() == 48 * len(archive.scored()), "the shadow score steers nothing and is no search cost"


def test_the_shadow_and_the_test_set_are_nowhere_in_the_archive(domain: Domain, tmp_path: Path) -> None:
    run(domain, tmp_path)
    _, shadow = split_tasks(domain.splits.harness, CONFIG.shadow, CONFIG.tasks)
    text = "".join(files(tmp_path / "archive").values())
    for task in [*shadow, *domain.splits.test]:
        assert f'"{task.id}"' not in text
        assert task.shown["question"] not in text


def test_the_split_is_disjoint_and_depends_on_nothing_but_ids(domain: Domain) -> None:
    seen, shadow = split_tasks(domain.splits.harness, 0.25, 1000)
    assert {t.id for t in seen}.isdisjoint(t.id for t in shadow)
    assert len(seen) + len(shadow) == len(domain.splits.harness)
    few, same = split_tasks(domain.splits.harness, 0.25, 10)
    assert list(few) == list(seen)[:10]
    assert same.hash == shadow.hash
    with pytest.raises(UserError, match="leave none"):
        split_tasks(few, 0.01, 10)


# ---------------------------------------------------------------------------------------------- what it refuses


REFUSED = {
    "does not parse": "def run(task, tools:\n",
    "no function `run(": "def go(task, tools):\n    yield []\n",
    "never yields": "def run(task, tools):\n    return 1\n",
    "takes (task, tools)": "def run(task):\n    yield []\n",
    "ZeroDivisionError": H0.source.replace("    messages = ", "    1 / 0\n    messages = "),
    "is system, user, assistant or tool": H0.source.replace("user(f", "dict(role='god', content=f"),
    "without asking": 'def run(task, tools):\n    return "x"\n    yield []\n',
    "no tool": H0.source.replace("        reply = yield", "        tools.answer()\n        reply = yield"),
    "static: imports os": H0.source.replace("from whale_envs.harness", "import os\nfrom whale_envs.harness"),
    "the same program as": "# Another comment.\n" + H0.source,
    "changes nothing": H0.source.replace("    messages = ", "    unused = 1\n    messages = "),
    "provenance: the model wrote the answer": (
        "import re\n\n\ndef run(task, tools):\n    yield [{'role': 'user', 'content': 'x'}]\n"
        "    hops = task.question[len('What is the '):-1].split(' of ')\n    name = hops[-1]\n"
        "    for hop in reversed(hops[:-1]):\n        hop = hop.removeprefix('the ')\n"
        "        text = tools.search(f'{name} {hop}', k=1)[0].text\n"
        "        found = re.search(f'(?:Its|Their) {hop} is ([^.]+)', text)\n"
        "        name = found[1] if found else name\n"
        "    return name\n"
    ),
}


@pytest.fixture(scope="module")
def played(domain: Domain, tmp_path_factory: pytest.TempPathFactory) -> Archive:
    folder = tmp_path_factory.mktemp("played")
    run(domain, folder, ScriptedProposer(), SearchSettings(rounds=1, tasks=6, refills=0, backoff=0))
    return Archive(folder / "archive", "search-qa")


@pytest.mark.parametrize("why", sorted(REFUSED))
def test_the_gate_refuses_and_says_why(domain: Domain, played: Archive, why: str) -> None:
    key = played.phase.score_key  # type: ignore[union-attr]
    recorded = gate_episodes(played.episodes(H0.hash, key))
    found = gate(Proposal(REFUSED[why], "x", (H0.hash,)), played, key, "now", domain, recorded)
    assert found and why in str(found[0]), found
    assert "\n" not in str(found[0])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Question:", "The question:"),
        ("yield messages", "yield Ask(messages, max_tokens=40)"),
        ("yield messages", 'yield Ask(messages, stop=("</answer>",))'),
        ("yield messages", 'yield Ask(messages, template_kwargs={"enable_thinking": False})'),
        ("yield messages", 'yield Ask(messages, tools=[{"name": "search"}])'),
    ],
)
def test_the_gate_lets_a_changed_harness_through(old: str, new: str, domain: Domain, played: Archive) -> None:
    key = played.phase.score_key  # type: ignore[union-attr]
    recorded = gate_episodes(played.episodes(H0.hash, key))
    changed = H0.source.replace("import ", "import Ask, ", 1).replace(old, new)
    assert gate(Proposal(changed, "x", (H0.hash,)), played, key, "now", domain, recorded) == []


#: Answers from the passages in the model's place, whenever that has written no tag.
CHEAT = """        if not tag(reply.text, "search"):
            for line in "\\n".join(p.text for p in tools.search(task.question, k=2)).splitlines():
                fact, _, value = line.rstrip(".").partition(" is ")
                if fact.partition(" ")[2] == task.question[len("What is the ") :].partition(" of ")[0]:
                    return value
"""
#: The same before the model is asked at all, in some of the tasks.
MUTE = CHEAT.replace('if not tag(reply.text, "search")', "if len(task.question) % 3").replace("\n    ", "\n")[4:]


@pytest.mark.parametrize(("before", "more"), [("        query = tag", CHEAT), ("    messages = ", MUTE)])
def test_a_candidate_that_is_caught_after_it_played_is_kept_with_the_reason_and_never_accepted(
    before: str, more: str, domain: Domain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_module, "gate", lambda *args: [])
    cheat = H0.source.replace(before, more + before)
    config = SearchSettings(rounds=1, candidates=1, tasks=24, backoff=0)
    accepted, _, told = run(domain, tmp_path, ScriptedProposer(Proposal(cheat, "Reads.", (H0.hash,))), config)
    archive = Archive(tmp_path / "archive", "search-qa")
    key = str(archive.phase.score_key)  # type: ignore[union-attr]
    caught = archive[Harness(cheat).hash]
    assert caught.scores[key].mean > archive[H0.hash].scores[key].mean
    assert caught.gate.startswith("provenance: the model wrote the answer")
    assert json.loads((archive.files(caught.hash) / "audit.json").read_bytes())[0]["layer"] == "provenance"
    assert caught not in archive.scored() and accepted.hash == H0.hash
    assert archive.rounds[0].tried[0].gate == caught.gate and archive.rounds[0].tried[0].mean == caught.scores[key].mean
    assert any("refused, provenance" in line for line in told.lines)
    before = files(tmp_path)
    run(domain, tmp_path, ScriptedProposer(), config)
    assert files(tmp_path) == before


def repeats(request: Request) -> str:
    """What it is told to: in the tag that is named, or the usual one."""
    text = request.ask.messages[-1]["content"]
    if "tag named say" in text:
        return f"<say>{text.splitlines()[0]}</say>"
    return f"<answer>{text.rpartition(': ')[2]}</answer>"


@pytest.mark.parametrize("name", ["tells_the_answer", "dictates_by_copy"])
def test_a_candidate_that_scores_without_the_model_is_not_accepted(name: str, domain: Domain, tmp_path: Path) -> None:
    """It dictates the answer, and the model repeats what it is told, as one that knows nothing would."""
    dictates = (Path(__file__).parent / "cheats" / f"{name}.py").read_text()
    archive, told = Archive(tmp_path / "archive", "search-qa"), Told()
    parrot = ScriptedPolicy(repeats, "parrot")
    accepted = search(
        parrot, domain, H0, SearchSettings(rounds=1, candidates=1, tasks=64, backoff=0), archive,
        ScriptedProposer(Proposal(dictates, "Tells.", (H0.hash,))), Ledger(tmp_path / "l"), told, 3, "search",
    )  # fmt: skip
    caught = archive[Harness(dictates).hash]
    assert archive.rounds[0].tried[0].mean is not None and archive.rounds[0].tried[0].mean > 0.9
    assert accepted is H0 and archive.rounds[0].accepted == H0.hash
    assert caught.gate == archive.rounds[0].tried[0].gate and caught.gate.startswith("null model: ")
    assert any(f"{caught.hash} refused, null model" in line for line in told.lines)


def test_a_refused_candidate_costs_no_rollout_and_its_place_is_filled(domain: Domain, tmp_path: Path) -> None:
    bad = Proposal(REFUSED["does not parse"], "Shorter.", (H0.hash,))
    good = Proposal(H0.source.replace("Question:", "The question:"), "Politer.", (H0.hash,))
    config = SearchSettings(rounds=1, candidates=1, tasks=6, refills=1, backoff=0)
    _, _, told = run(domain, tmp_path, ScriptedProposer(bad, good), config)
    archive = Archive(tmp_path / "archive", "search-qa")
    assert [bool(t.gate) for t in archive.rounds[0].tried] == [True, False]
    assert Ledger(tmp_path / "ledger.jsonl").rollouts() == 12
    assert any("refused" in line and "does not parse" in line for line in told.lines)
    assert archive.candidates[1].gate


def test_a_proposer_that_fails_is_asked_again_a_bounded_number_of_times_and_the_round_says_so(
    domain: Domain, tmp_path: Path
) -> None:
    config = SearchSettings(rounds=2, candidates=1, tasks=6, retries=2, refills=2, backoff=0)
    good = Proposal(H0.source.replace("Question:", "The question:"), "Politer.", (H0.hash,))
    down = ProposerError("the service is down")
    _, _, told = run(domain, tmp_path, ScriptedProposer(down, down, down, down, good), config)
    archive = Archive(tmp_path / "archive", "search-qa")
    assert sum("asked again" in line for line in told.lines) == 3
    assert "failed 3 times, last: the service is down" in archive.rounds[0].note
    assert archive.rounds[0].tried == [] and len(archive.rounds[1].tried) == 1
    assert any("the service is down" in line for line in told.lines)


def test_a_start_that_fails_before_it_asks_is_searched_from_as_any_other(domain: Domain, tmp_path: Path) -> None:
    tasks, _ = split_tasks(domain.splits.harness, CONFIG.shadow, CONFIG.tasks)
    fails = f"    if task.question == {tasks[0].shown['question']!r}:\n        1 / 0\n    messages = "
    start = Harness(H0.source.replace("    messages = ", fails))
    run(domain, tmp_path, ScriptedProposer(rewording("The")), accepted=start)
    archive = Archive(tmp_path / "archive", "search-qa")
    key = archive.phase.score_key  # type: ignore[union-attr]
    failed = [e for e in archive.episodes(start.hash, key) if e.failure]
    assert [(e.task_id, e.calls) for e in failed] == [(tasks[0].id, [])]
    assert len(archive.rounds) == CONFIG.rounds and len(archive.scored()) == 2


def test_a_policy_that_answers_nothing_is_no_score(domain: Domain, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="answered none of 6 episodes"):
        search(
            ScriptedPolicy([]), domain, H0, CONFIG, Archive(tmp_path / "a", "search-qa"), MutationProposer(),
            Ledger(tmp_path / "l"), Silent(), 0, "search",
        )  # fmt: skip
    assert Archive(tmp_path / "a", "search-qa").scored() == []


@pytest.mark.parametrize("bad", [{"tasks": 0}, {"rounds": -1}, {"shadow": 1.0}, {"acceptance": "worst"}, {"level": 0}])
def test_settings_that_make_no_sense_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(UserError):
        SearchSettings(**bad)  # type: ignore[arg-type]


# ---------------------------------------------------------------------------------------------- what lasts


def test_nothing_is_run_twice_and_new_weights_stand_beside_old_ones(domain: Domain, tmp_path: Path) -> None:
    first, _, _ = run(domain, tmp_path)
    before = files(tmp_path)
    again, policy, _ = run(domain, tmp_path)
    assert again.hash == first.hash
    assert isinstance(policy, ScriptedPolicy) and policy.requests == []
    assert files(tmp_path) == before
    run(domain, tmp_path, policy=ScriptedPolicy(searcher, "other weights"), key="search 2")
    scores = Archive(tmp_path / "archive", "search-qa")[H0.hash].scores
    assert len(scores) == 2
    ledger = Ledger(tmp_path / "ledger.jsonl")
    played = [s.unit for c in Archive(tmp_path / "archive", "search-qa").candidates for s in c.scores.values()]
    assert len(played) == len(set(played))
    assert ledger.rollouts("search") == 6 * len(played)


class Killed(BaseException):
    """What a kill looks like from within."""


def test_killed_at_any_write_it_ends_as_if_undisturbed(
    domain: Domain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = SearchSettings(rounds=1, candidates=2, tasks=3, refills=1, backoff=0)
    run(domain, tmp_path / "undisturbed", config=config)
    wanted, write, writes = files(tmp_path / "undisturbed"), archive_module.write_atomic, 0

    def dying(path: Path, data: bytes) -> None:
        nonlocal writes
        writes += 1
        if writes == fatal:
            raise Killed
        write(path, data)

    monkeypatch.setattr(archive_module, "write_atomic", dying)
    for fatal in range(2, 40, 9):
        writes, folder = 0, tmp_path / f"killed-{fatal}"
        try:
            run(domain, folder, config=config)
        except Killed:
            run(domain, folder, config=config)
        assert files(folder) == wanted, fatal


SCRIPT = """
import sys, time
sys.path.insert(0, {tests!r})
from pathlib import Path
from search_runs import SEED, run
from whale_envs.domains import load_domain
from whale_train.meta_harness import evaluate, search
from whale_train.meta_harness.proposers.mutation import MutationProposer

where, folder = sys.argv[1], Path(sys.argv[2])
module, name = {{"propose": (MutationProposer, "propose"), "gate": (search, "gate"),
                "evaluate": (evaluate, "rollout"), "accept": (search, "choose"), "end": (search, "")}}[where]
if name:
    work = getattr(module, name)
    def stuck(*args, **kwargs):
        done = work(*args, **kwargs)  # what it has done is lost with it
        if len(list(folder.glob("archive/candidates/*"))) >= 3:
            (folder.parent / where).touch()
            time.sleep(600)
        return done
    setattr(module, name, stuck)
run(load_domain("search-qa"), folder)
"""


@pytest.mark.slow
def test_kill_minus_nine_in_each_step_of_a_round_and_the_same_command_give_the_same_archive(
    domain: Domain, tmp_path: Path
) -> None:
    run(domain, tmp_path / "undisturbed")
    command = [sys.executable, "-c", SCRIPT.format(tests=str(Path(__file__).parent))]
    for step in ("gate", "evaluate", "accept", "propose", "end"):
        process = subprocess.Popen([*command, step, str(tmp_path / "killed")], cwd=Path(__file__).parents[1])
        while process.poll() is None and not (tmp_path / step).exists():
            time.sleep(0.01)
        if step != "end":
            process.send_signal(signal.SIGKILL)
        assert process.wait() == (-signal.SIGKILL if step != "end" else 0), f"it was not killed in {step}"
    assert files(tmp_path / "killed") == files(tmp_path / "undisturbed")


def test_two_runs_with_one_seed_give_the_same_archive_byte_for_byte_times_apart(domain: Domain, tmp_path: Path) -> None:
    config = SearchSettings(rounds=1, candidates=2, tasks=33, refills=1, backoff=0, acceptance="paired", racing=True)
    for name in ("one", "other"):
        run(domain, tmp_path / name, config=config)
    assert files(tmp_path / "one") == files(tmp_path / "other")
