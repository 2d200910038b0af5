"""The fast ways of a step give what the plain ways give, for any value."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whale_envs.errors import ToolUseError
from whale_envs.harness import results, wire
from whale_envs.harness.helpers import Ask, BoardView, ExecResult, Passage
from whale_envs.harness.results import two_copies
from whale_envs.harness.session import Toolbox


class Text(str):
    """A string of another type."""


TEXT = st.text(st.characters(exclude_categories=()), max_size=6) | st.just(Text("own"))
ATOMS = st.none() | st.booleans() | st.integers() | st.just(1 << 5000) | st.floats() | TEXT | st.just(object)
VALUES = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(TEXT | st.integers(0, 3), inner, max_size=3)
        | st.builds(Passage, inner, inner, inner, inner)
        | st.builds(BoardView, TEXT, TEXT, st.lists(st.tuples(inner, inner), max_size=2).map(tuple))
        | st.builds(ExecResult, TEXT, TEXT, TEXT)
    ),
    max_leaves=12,
)


FROZEN = (Passage, BoardView, ExecResult)


def mutable(value: Any, *, frozen: bool = True) -> Iterator[int]:
    """The identities of what can be changed in a value, with or without those who get past a frozen dataclass."""
    if isinstance(value, list | dict) or (frozen and isinstance(value, FROZEN)):
        yield id(value)
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    for v in vars(value).values() if isinstance(value, FROZEN) else inner:
        yield from mutable(v, frozen=frozen)


def outcome(work: Callable[[], Any]) -> tuple[str, str]:
    """What comes of it, to compare: types too, which `==` forgives."""
    try:
        return "value", repr(work())
    except (ValueError, TypeError) as error:
        return type(error).__name__, str(error)


@settings(max_examples=150, deadline=None)
@given(VALUES)
def test_two_copies_are_what_packing_gives_and_share_nothing_that_changes(value: Any) -> None:
    want = outcome(lambda: wire.unpack(wire.pack(value, "it")))
    assert outcome(lambda: two_copies(value, "it")[0]) == outcome(lambda: two_copies(value, "it")[1]) == want
    if want[0] == "value":
        kept, given_ = two_copies(value, "it")
        assert not {*mutable(given_)} & {*mutable(value), *mutable(kept)}
        assert not {*mutable(kept, frozen=False)} & {*mutable(value, frozen=False)}


def test_bounds_are_those_of_packing() -> None:
    most = wire.MAX_CHARS - 2 * wire.VALUE_CHARS
    deep: Any = "x"
    for _ in range(wire.MAX_DEPTH):
        deep = [deep]
    for value in (["x" * most], ["x" * (most + 1)], deep, [deep], (deep,), {"k": deep}, "é" * (most + 9)):
        assert outcome(lambda v=value: wire.unpack(wire.pack(v, "it"))) == outcome(
            lambda v=value: two_copies(v, "it")[0]
        )


def test_positions_that_come_back_are_counted_once_and_never_mistaken() -> None:
    results._frozen.clear()
    view = BoardView("f", "b", tuple((f"a{i}", f"b{i}") for i in range(50)))
    for _ in range(3):
        kept, given_ = two_copies(view, "it")
        assert kept is view and given_ is not view and given_ == view
    assert len(results._frozen) == 1
    for number in range(results.MOST_FROZEN + 10):  # a new position may lie where a dropped one lay
        changing = [number]
        mixed, other = two_copies(BoardView("f", "b", (("a", "b"), changing)), "it")  # type: ignore[arg-type]
        assert mixed.legal[1] == [number] and mixed.legal[1] is not changing and mixed.legal[1] is not other.legal[1]
        assert two_copies(BoardView("f", "b", (("a", str(number)),)), "it")[0].legal == (("a", str(number)),)
    assert 0 < len(results._frozen) <= results.MOST_FROZEN


class World:
    """Functions of every kind that a tool may be."""

    def method(self, query: str, k: int = 1) -> None: ...

    def keyword(self, query: str, *, k: int = 1) -> None: ...

    def many(self, *words: str, **more: str) -> None: ...

    def positional(self, query: str, /, k: int = 1) -> None: ...

    @staticmethod
    def static(query: str, k: int = 1) -> None: ...

    @classmethod
    def of_class(cls, query: str) -> None: ...

    def __call__(self, query: str) -> None: ...


TOOLS = [
    World().method, World().keyword, World().many, World().positional, World().static, World().of_class, World(),
    lambda: None, lambda query, k=1, n=2: None,
    functools.partial(World().method, "q"), functools.partial(World().method, k=2),
]  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(TOOLS),
    st.lists(st.integers(), max_size=4),
    st.dictionaries(st.sampled_from(["query", "k", "n", "self", "words", "other"]), st.integers(), max_size=3),
)
def test_arguments_are_refused_as_the_signature_refuses_them(
    tool: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]
) -> None:
    kind, said = outcome(lambda: inspect.signature(tool).bind(*args, **kwargs) and None)
    want = outcome(lambda: tool(*args, **kwargs)) if kind == "value" else ("ToolUseError", f"it: {said}")
    assert outcome(lambda: Toolbox({"it": tool}).call("it", args, kwargs)) == want


def test_a_type_error_in_a_tool_that_takes_its_arguments_is_a_bug_of_ours() -> None:
    def broken(query: str) -> int:
        return query + 1  # type: ignore[operator]

    box = Toolbox({"it": broken})
    with pytest.raises(TypeError, match="concatenate"):
        box.call("it", ["x"], {})
    assert isinstance(box.raised, TypeError) and box.calls[0].error
    with pytest.raises(ToolUseError, match=r"^it: missing a required argument: 'query'$"):
        Toolbox({"it": broken}).call("it", [], {})


@settings(max_examples=100, deadline=None)
@given(st.lists(VALUES, max_size=3), st.dictionaries(TEXT, VALUES, max_size=2))
def test_a_calls_arguments_are_copied_as_any_value_is(args: list[Any], kwargs: dict[str, Any]) -> None:
    want = outcome(lambda: wire.plain([args, kwargs], "it"))
    assert outcome(lambda: list(wire.plain_call(tuple(args), kwargs, "it"))) == want


MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "tool", "god", Text("user")]), "content": TEXT | st.none()})
    | st.fixed_dictionaries({"content": TEXT, "role": st.just("system")}, optional={"name": VALUES})
    | VALUES,
    max_size=3,
)


@settings(max_examples=150, deadline=None)
@given(MESSAGES, st.booleans())
def test_an_ask_of_text_is_copied_as_any_ask_is(messages: Any, bare: bool) -> None:
    yielded = messages if bare else Ask(messages)
    slow = Ask(messages, template_kwargs={"a": 1})  # goes the long way
    want = outcome(lambda: wire.Asks().next(slow).messages)
    got = outcome(lambda: wire.Asks().next(yielded).messages)
    assert got == want or (bare and not messages and got[0] == want[0])
    if got[0] == "value":
        copied = wire.Asks().next(yielded)
        assert not set(mutable(messages)) & set(mutable(copied.messages))
        assert copied == Ask(copied.messages)


@settings(max_examples=100, deadline=None)
@given(st.lists(MESSAGES, max_size=4), st.booleans(), st.data())
def test_an_ask_that_goes_on_is_what_it_would_be_by_itself(parts: list[Any], bare: bool, data: st.DataObject) -> None:
    asks, messages = wire.Asks(), [{"role": "user", "content": "go"}]
    before: list[tuple[Any, str]] = []
    for part in parts:
        messages += part if isinstance(part, list) else []
        if data.draw(st.booleans()):  # a harness may change what it has shown
            messages[0]["content"] += "!"
        yielded = messages if bare else Ask(messages)
        want = outcome(lambda yielded=yielded: wire.Asks().next(yielded).messages)
        assert outcome(lambda yielded=yielded: asks.next(yielded).messages) == want
        if want[0] == "value":
            before.append((asks.next(yielded), want[1]))
            messages = list(map(dict, messages))
    assert all(repr(ask.messages) == shown for ask, shown in before)


@pytest.mark.parametrize("over", [0, 1])
def test_an_ask_of_text_has_the_bounds_of_any(over: int) -> None:
    room = wire.MAX_CHARS - 9 * wire.VALUE_CHARS - len("roleusercontent") + over
    asks = [Ask([{"role": "user", "content": "x" * n}]) for n in (room, room + 1)]
    fast = [outcome(lambda ask=ask: wire.Asks().next(ask)) for ask in asks]
    slow = [outcome(lambda ask=ask: wire._copied(ask, [], 0)[0]) for ask in asks]
    assert fast == slow
