"""Who may see and spend what: no proposer meets a test or shadow task, and no search goes over its budget."""

from __future__ import annotations

import copy
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import zstandard
from agent_runs import DOMAIN, FAST, H0
from anthropic_server import KEY, Answer, MessagesServer, call, text
from hypothesis import given, settings
from hypothesis import strategies as st

from whale_envs import Domain, Splits, Task, TaskSet
from whale_train.ledger import Ledger
from whale_train.meta_harness.archive import Archive
from whale_train.meta_harness.evaluate import score_shadow, split_tasks
from whale_train.meta_harness.proposers import load_proposer
from whale_train.meta_harness.proposers.agent import AgentProposer
from whale_train.meta_harness.proposers.anthropic import AnthropicService
from whale_train.meta_harness.proposers.archive_tools import TOOLS, Desk, ToolInputError
from whale_train.meta_harness.proposers.base import Cost, Proposal, Proposer
from whale_train.meta_harness.search import SearchSettings, search
from whale_train.policies.base import Request
from whale_train.policies.scripted import ScriptedPolicy
from whale_train.progress import Silent

pytestmark = pytest.mark.usefixtures("no_fsync")

#: Numbers that nothing else comes to: tasks of the test set, of the harness split, of its shadow, and all of the rest.
TEST, HARNESS = 3539, 10844
SHADOW = HARNESS // 4
COUNTS = (TEST, HARNESS, SHADOW, HARNESS - SHADOW)
CONFIG = SearchSettings(rounds=2, candidates=2, tasks=8, refills=0, retries=0, backoff=0)


def word(*parts: object) -> str:
    """A word that stands nowhere else."""
    return "z" + hashlib.sha256(repr(parts).encode()).hexdigest()[:14]


def tasks(split: str, count: int) -> TaskSet:
    """Tasks whose id, question and answer are each told from all others by a word."""
    kinds = ("id", "question", "answer")
    made = []
    for number in range(count):
        id, question, answer = (word(split, kind, number) for kind in kinds)
        made.append(Task(id, {"question": f"What is the {question} of Ada?"}, (answer,)))
    return TaskSet(made, split)


@pytest.fixture(scope="module")
def domain() -> Domain:
    made = copy.copy(DOMAIN)
    made.splits = Splits(tasks("weight", 80), tasks("harness", HARNESS), tasks("test", TEST))
    return made


def policy(domain: Domain) -> ScriptedPolicy:
    """Knows every answer, also those that it is never to be asked for, and gives a third of them, or all when asked
    politely; what a harness shows it stands in its replies."""
    known = {t.shown["question"]: t for split in ("weight", "harness", "test") for t in getattr(domain.splits, split)}

    def answer(request: Request) -> str:
        shown = request.ask.messages[1]["content"]
        task = known[shown.partition("uestion: ")[2].partition("\n")[0]]
        right = int(task.id[1:], 16) % 3 == 0 or shown.startswith("Please")
        return f"I read {shown!r}. <answer>{task.gold[0] if right else 'nobody'}</answer>"

    return ScriptedPolicy(answer, "knows all")


def run(domain: Domain, folder: Path, proposer: Proposer, config: SearchSettings = CONFIG) -> tuple[Archive, Ledger]:
    archive, ledger = Archive(folder / "archive", "search-qa"), Ledger(folder / "ledger.jsonl")
    asked = policy(domain)
    best = search(asked, domain, H0, config, archive, proposer, ledger, Silent(), 3, "search")
    score_shadow(asked, domain, best, config.shadow, 3, ledger, Silent(), "search", folder / "shadow", 1)
    return archive, ledger


def everything(folder: Path) -> str:
    """Every file below a folder, names and contents, unpacked where they are packed."""
    found = []
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        with path.open("rb") as file:
            packed = path.suffix == ".zst"
            data = zstandard.ZstdDecompressor().stream_reader(file).read() if packed else file.read()
        found += [str(path.relative_to(folder)), data.decode()]
    return "\n".join(found)


def all_that_tools_show(archive: Archive, domain: Domain) -> str:
    """What each tool answers to everything that it can be asked, mistakes too."""
    desk, shown = Desk(archive, 1, domain), []

    def use(tool: str, **given: Any) -> None:
        try:
            shown.append(desk.use(tool, given))
        except ToolInputError as error:
            shown.append(str(error))

    hashes = [c.hash for c in archive.candidates]
    use("list_candidates")
    for path in [".", *(str(p.relative_to(archive.folder)) for p in desk.files(archive.folder))]:
        for first in (1, 40):
            use("read", path=path, first=first)
    for pattern in ("shadow|test", "z[0-9a-f]{14}", r"\d{4,}"):
        use("grep", pattern=pattern)
    for hash in [*hashes, "shadow", "test"]:
        use("outcomes", candidate=hash)
        for other in hashes:
            use("compare", first=hash, second=other)
        for task in [*archive.outcomes(hashes[0], archive.phase.score_key), "shadow"]:  # type: ignore[union-attr]
            use("episode", candidate=hash, task=task)
    for task in [*archive.outcomes(hashes[0], archive.phase.score_key), "test"]:  # type: ignore[union-attr]
        use("try_draft", source=H0.source, candidate=hashes[0], tasks=[task])
    use("submit", source="nothing", hypothesis="x", parents=[], axes=[])
    return "\n".join(shown)


def clean(said: str, domain: Domain, seen_at_least: int) -> None:
    """Of what was said, nothing may stem from the tasks that no proposer sees; the others must be in it, or the test
    would hold of an empty text."""
    search_tasks, shadow = split_tasks(domain.splits.harness, CONFIG.shadow, CONFIG.tasks)
    words = set(re.findall(r"z[0-9a-f]{14}", said))
    assert len({t.id for t in search_tasks} & words) >= seen_at_least
    seen = {t.id for t in search_tasks}
    for task in [*domain.splits.harness, *domain.splits.test]:
        if task.id not in seen:
            own = {task.id, *re.findall(r"z[0-9a-f]{14}", task.shown["question"]), *task.gold}
            assert not own & words, task.id
    assert len(shadow) == SHADOW
    for count in COUNTS:
        assert not re.search(rf"(?<![\w.-])({count}|{count:,})(?![\w.])", said), count


def test_nothing_of_the_test_set_or_the_shadow_is_in_what_an_agent_could_read(
    domain: Domain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    words = ("One question:", "Please, the question:", "Now the question:", "Please, this question:")
    sources = iter([H0.source.replace("Question:", shown) for shown in words])
    curious = [
        call("list_candidates", {}), call("read", {"path": "."}), call("grep", {"pattern": "shadow|test|task"}),
        call("read", {"path": "archive.json"}), call("outcomes", {"candidate": H0.hash}),
        call("read", {"path": "../shadow"}), call("grep", {"pattern": ".", "path": "../shadow"}),
    ]  # fmt: skip

    def submit(request: dict[str, Any]) -> Answer:
        given = {"hypothesis": "It helps.", "parents": [H0.hash], "axes": ["view"]}
        return Answer([text("I hand in."), call("submit", {"source": next(sources), **given})])

    def look(request: dict[str, Any]) -> Answer:
        return Answer([text("I look."), *curious])

    with MessagesServer([look, submit, submit, look, submit, submit]) as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        archive, ledger = run(domain, tmp_path, AgentProposer(AnthropicService(), domain, FAST))
    assert len(server.requests) == 6 and len(archive.rounds) == 2
    assert archive.accepted != H0.hash, "or the audit of what is accepted would not be in the archive"
    assert ledger.rollouts("test") == SHADOW, "the shadow was played, where no proposer looks"
    clean(json.dumps(server.requests), domain, CONFIG.tasks)
    clean(everything(archive.folder), domain, CONFIG.tasks)
    clean(all_that_tools_show(archive, domain), domain, CONFIG.tasks)


def test_nothing_of_them_is_in_the_archive_of_the_mutation_proposer(domain: Domain, tmp_path: Path) -> None:
    archive, _ = run(domain, tmp_path, load_proposer("mutation", domain))
    clean(everything(archive.folder), domain, CONFIG.tasks)


def test_every_tool_has_been_asked() -> None:
    source = Path(__file__).read_text()
    assert all(f'use("{name}"' in source for name in TOOLS)


class Greedy:
    """Hands in many more than it is asked for, with broken ones and the same ones among them."""

    name = "greedy"
    cost = Cost()
    exchanges = ()

    def __init__(self) -> None:
        self.made = 0

    def propose(self, archive: Archive, count: int, seed: int) -> list[Proposal]:
        found = []
        for _ in range(3 * count + 2):
            self.made += 1
            new = H0.source.replace("Question:", f"Question {self.made}:")
            source = {0: "def run(\n", 1: H0.source}.get(self.made % 5, new)
            found.append(Proposal(source, f"Number {self.made}.", (H0.hash,)))
        return found


@settings(max_examples=5, deadline=None)
@given(rounds=st.integers(0, 2), candidates=st.integers(1, 3), tasks=st.integers(1, 4), refills=st.integers(0, 2))
def test_a_search_spends_no_more_rollouts_than_its_budget(
    tmp_path_factory: pytest.TempPathFactory, rounds: int, candidates: int, tasks: int, refills: int
) -> None:
    """The budget is rounds x candidates x tasks, and tasks for the baseline: refused candidates cost nothing, and what
    is asked for in their place fills their place alone."""
    folder = tmp_path_factory.mktemp("greedy")
    config = SearchSettings(rounds=rounds, candidates=candidates, tasks=tasks, refills=refills, retries=0, backoff=0)
    asked, ledger = ScriptedPolicy(lambda request: "<answer>nobody</answer>", "nobody"), Ledger(folder / "ledger.jsonl")
    archive = Archive(folder / "archive", "search-qa")
    search(asked, DOMAIN, H0, config, archive, Greedy(), ledger, Silent(), 3, "search")
    budget = rounds * candidates * tasks + tasks
    assert tasks <= ledger.rollouts() <= budget
    assert len(asked.requests) == ledger.rollouts(), "one call an episode here: what was played is what was counted"
