"""Every registered env keeps the contract with every harness that ships; one that does not is caught."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from harness_zoo import BODIES, FILES, in_one_file
from toy_domain import Toy, ToyWorld, toy_harness

from whale_envs import DOMAINS, Harness, Task, TaskSet, Verdict, load_domain
from whale_envs.contract import ContractError, check_env_contract, replies
from whale_envs.harness.load import seed_names

HONEST = sorted(Path(__file__).with_name("honest").glob("*.py"))
DOMAIN_OF = {"chess": "chess", "math": "math", "search": "search-qa"}


@pytest.mark.parametrize(("id", "harness"), [(d.id, h) for name, d in DOMAINS.items() for h in seed_names(name)])
def test_registered_envs_keep_the_contract(id: str, harness: str) -> None:
    check_env_contract(id, harness, tasks=2, episodes=3)


@pytest.mark.parametrize("path", HONEST, ids=lambda path: path.stem)
def test_registered_envs_keep_the_contract_with_harnesses_as_people_write_them(path: Path) -> None:
    check_env_contract(DOMAINS[DOMAIN_OF[path.stem.partition("_")[0]]].id, path, tasks=0, episodes=3)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # "yields when closed" goes on doing so
@pytest.mark.parametrize("id", [d.id for d in DOMAINS.values()])
def test_registered_envs_keep_the_contract_whatever_a_harness_does(id: str) -> None:
    """The tools that the zoo calls are the toy domain's: here those harnesses fail, and fail alike."""
    field = "fen" if id == "whale/Chess" else "question"
    harness = toy_harness(in_one_file(BODIES).replace("task.question", f"task.{field}"))
    model = lambda seed: chain([str(seed)], replies(seed))  # noqa: E731
    check_env_contract(id, harness, tasks=1, episodes=len(BODIES), model=model)


@pytest.mark.slow
@pytest.mark.parametrize("id", [d.id for d in DOMAINS.values()])
@pytest.mark.parametrize("name", FILES)
def test_registered_envs_keep_the_contract_with_odd_files(id: str, name: str) -> None:
    check_env_contract(id, toy_harness(FILES[name]), tasks=1, episodes=2)


def test_every_domain_ships_h0_and_a_strong_harness() -> None:
    for name in DOMAINS:
        assert {"h0", "strong"} <= set(seed_names(name))
        assert load_domain(name).name == name


class HonestWorld(ToyWorld):
    """Without the tools that are broken on purpose."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.tools = {name: self.tools[name] for name in ("look", "double", "board", "stop")}


class Generous(HonestWorld):
    def verdict(self, answer: Any) -> Verdict:
        return Verdict(1.0, "right") if answer is None or answer == self.gold else Verdict(0.0, "wrong")


class Unsolvable(HonestWorld):
    def solve(self) -> str:
        return "no idea"


class Careless(HonestWorld):
    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.tools["look"] = lambda word: word.lower()


class Forgetful(HonestWorld):
    count = 0

    def look(self, word: str, k: int = 1) -> Any:
        Forgetful.count += 1
        return super().look(f"{word} {Forgetful.count}", k)


class Nervous(HonestWorld):
    def verdict(self, answer: Any) -> Verdict:
        return super().verdict(answer.strip())


def test_an_honest_domain_passes() -> None:
    check_env_contract(Toy(HonestWorld), toy_harness())


@pytest.mark.parametrize(
    ("world", "message"),
    [
        (Generous, "the wrong answer None scores 1.0"),
        (Unsolvable, "the gold solution scores 0.0"),
        (Careless, r"look\(.*raised AttributeError"),
        (Forgetful, "the same seed and replies gave another episode"),
    ],
)
def test_a_broken_domain_is_caught(world: type[ToyWorld], message: str) -> None:
    with pytest.raises(ContractError, match=message):
        check_env_contract(Toy(world), toy_harness(), episodes=8)


def test_a_verifier_that_raises_is_caught() -> None:
    with pytest.raises(AttributeError):
        check_env_contract(Toy(Nervous), toy_harness())


def test_shared_rows_are_caught() -> None:
    domain = Toy(HonestWorld)
    domain.splits = type(domain.splits)(domain.splits.weight, domain.splits.harness, TaskSet(domain.splits.weight[:1]))
    with pytest.raises(ContractError, match="1 tasks are both in the weight and in the test split"):
        check_env_contract(domain, toy_harness())


TYPOGRAPHY = {
    "search-qa": lambda shown: shown | {"question": shown["question"].upper() + " "},
    "math": lambda shown: shown | {"question": f"${shown['question']}$"},
    "chess": lambda shown: shown | {"fen": shown["fen"].rsplit(" ", 2)[0] + " 7 9"},
}


@pytest.mark.parametrize("name", DOMAINS)
def test_a_row_that_leaks_in_other_typography_is_caught(name: str) -> None:
    domain = load_domain(name)
    task = domain.splits.weight[0]
    other = Task("another-id", TYPOGRAPHY[name](task.shown), task.gold)
    domain.splits = type(domain.splits)(domain.splits.weight, domain.splits.harness, TaskSet([other]))
    with pytest.raises(ContractError, match="1 tasks are both in the weight and in the test split"):
        check_env_contract(domain)
    check_env_contract(name, tasks=1, episodes=0)  # the bundled world's splits are as they were


class Once(HonestWorld):
    """Closes badly when it is closed again."""

    closed = False

    def close(self) -> None:
        assert not self.closed, "closed twice"
        self.closed = True


def test_a_world_that_cannot_be_closed_twice_is_caught() -> None:
    with pytest.raises(AssertionError, match="closed twice"):
        check_env_contract(Toy(Once), toy_harness(), episodes=0)


@pytest.fixture
def odd() -> Iterator[Harness]:
    yield toy_harness("yield [user(str(id(object)))]")


def test_a_harness_that_depends_on_its_process_is_caught(odd: Harness) -> None:
    with pytest.raises(ContractError, match="jailed, the episode is another"):
        check_env_contract(Toy(HonestWorld), odd)
