"""What crosses between a harness and the rest stays what it was, or is refused with words."""

from __future__ import annotations

import contextlib
import json
import socket
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whale_envs.harness import helpers, wire
from whale_envs.harness.helpers import Ask, BoardView, ExecResult, Passage

TEXT = st.text(st.characters(exclude_categories=()), max_size=20)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
JSON = st.recursive(SCALARS, lambda v: st.lists(v, max_size=4) | st.dictionaries(TEXT, v, max_size=4), max_leaves=20)
RESULTS = st.one_of(
    st.builds(Passage, TEXT, TEXT, TEXT, st.floats(allow_nan=False, allow_infinity=False)),
    st.builds(ExecResult, TEXT, TEXT, TEXT),
    st.builds(BoardView, TEXT, TEXT, st.lists(st.tuples(TEXT, TEXT), max_size=3).map(tuple), st.booleans()),
)
ANYTHING = st.recursive(
    SCALARS | RESULTS,
    lambda v: st.lists(v, max_size=4) | st.lists(v, max_size=3).map(tuple) | st.dictionaries(TEXT, v, max_size=4),
    max_leaves=20,
)
STRANGE = st.sampled_from(
    [{1}, b"x", object(), float("nan"), float("inf"), 10**4000, {1: 2}, {(): 1}, range(3), Passage]
)


def cleaned(value: Any) -> Any:
    """`value` with its text as valid Unicode: what a copy should be equal to."""
    if isinstance(value, str):
        return wire.clean(value)
    if isinstance(value, list | tuple):
        return type(value)(cleaned(v) for v in value)
    if isinstance(value, dict):
        return {wire.clean(k): cleaned(v) for k, v in value.items()}
    if type(value) in wire.RESULT_TYPES.values():
        return type(value)(**cleaned(vars(value)))
    return value


@given(JSON)
def test_plain_values_are_copied_as_they_are(value: Any) -> None:
    copy = wire.plain(value, "it")
    assert copy == cleaned(value)
    assert wire.plain(copy, "it") == copy
    assert msgspec.json.decode(msgspec.json.encode(copy)) == copy == json.loads(json.dumps(copy))


@given(ANYTHING)
def test_tool_results_keep_their_types_over_a_wire(value: Any) -> None:
    packed = json.loads(json.dumps(wire.pack(value, "it"), ensure_ascii=False).encode())
    again = wire.unpack(packed)
    assert again == cleaned(value)
    assert repr(again) == repr(cleaned(value))  # tuples stay tuples, True is not 1


@given(st.recursive(SCALARS | STRANGE, lambda v: st.lists(v, max_size=3) | st.dictionaries(TEXT, v, max_size=3)))
def test_what_is_no_json_is_refused_with_a_value_error(value: Any) -> None:
    try:
        copy = wire.plain(value, "it")
    except ValueError as error:
        assert str(error).startswith("it ")
        str(error).encode()
    else:
        msgspec.json.encode(copy)


def test_bounds_are_kept_whatever_the_shape() -> None:
    wire.plain("x" * (wire.MAX_CHARS - 8), "it")
    for large in ("x" * wire.MAX_CHARS, [0] * 100_000, {str(i): "" for i in range(60_000)}, [["x" * 1000]] * 1000):
        with pytest.raises(ValueError, match="it is larger than 600,000 characters"):
            wire.plain(large, "it")
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ValueError, match="nested more than 64 levels"):
        wire.plain(loop, "it")
    worst = ["\x00" * (wire.MAX_CHARS - 16)]
    assert len(json.dumps(worst)) < wire.MAX_FRAME


def test_helpers_offer_the_same_names_everywhere() -> None:
    import whale_envs.harness as package

    assert sorted(helpers.__all__) == sorted(package.__all__)
    assert all(getattr(package, name) is getattr(helpers, name) for name in helpers.__all__)


@settings(max_examples=30)
@given(st.lists(JSON, max_size=3))
def test_frames_arrive_as_they_were_sent(values: list[Any]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sender, receiver = wire.Channel(ours.fileno()), wire.Channel(theirs.fileno())
        frames = [wire.plain(value, "it") for value in values]
        for frame in frames:
            sender.send(frame)
        assert [receiver.receive() for _ in frames] == frames


def test_what_arrives_in_pieces_is_put_together() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        receiver = wire.Channel(theirs.fileno())
        data = b"".join(len(text).to_bytes(4, "big") + text for text in (b"[1]", b'"two"', b"{}"))
        pieces = [data[i : i + 1] for i in range(len(data))]
        assert [receiver.receive(lambda: ours.sendall(pieces.pop(0))) for _ in range(3)] == [[1], "two", {}]


def test_a_frame_larger_than_the_sockets_buffers_is_sent_in_pieces() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        frame, got = ["x" * 1000] * 3000, bytearray()
        wire.Channel(ours.fileno()).send(frame, lambda: got.extend(theirs.recv(1 << 20)))
        with contextlib.suppress(BlockingIOError):
            while True:
                got += theirs.recv(1 << 20)
        assert json.loads(got[4:]) == frame


def test_the_check_ends_what_does_not_get_through() -> None:
    ours, theirs = socket.socketpair()

    def late() -> None:
        raise TimeoutError

    with ours, theirs:
        ours.setblocking(False)
        theirs.sendall(b"\x00\x00\x00\x09abc")
        channel = wire.Channel(ours.fileno())
        for _ in range(2):  # in the middle of a frame, and when nothing comes
            with pytest.raises(TimeoutError):
                channel.receive(late)
        with pytest.raises(TimeoutError):
            channel.send(["x" * 1000] * 3000, late)  # nobody reads
        theirs.close()
        with pytest.raises(wire.Gone):
            channel.receive()
        with pytest.raises(wire.Gone, match="cannot send"):
            channel.send(["x"] * 100)


MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(wire.ROLES), "content": st.sampled_from(["", "a", "b", "é", "\ud800"])},
        optional={
            "more": st.sampled_from([0, False, 0.0, -0.0, "", [], [0], [False], {"a": 1, "b": 2}, {"b": 2, "a": 1}])
        },
    ),
    min_size=1,
    max_size=4,
)


@given(st.lists(MESSAGES | MESSAGES.map(lambda m: [dict(reversed(v.items())) for v in m]), max_size=5), st.booleans())
def test_asks_arrive_as_they_were_yielded(yielded: list[list[Any]], growing: bool) -> None:
    ours: list[Any] = []
    theirs: list[Any] = []
    chars = 0
    for new in yielded:
        ask = wire.Asks().next(Ask([*ours, *new] if growing else new, stop=("x",)))
        fields = json.loads(json.dumps(wire.fields_of(ask, ours)))
        if growing and ours:
            assert len(fields[1]) == len(new)
        arrived, chars = wire.ask_from(fields, theirs, chars)
        assert repr(arrived) == repr(ask)
        ours, theirs = ask.messages, [dict(message) for message in arrived.messages]


@pytest.mark.parametrize("extra", [{}, {"a": "x" * 400_000}])
def test_what_arrived_before_counts_with_all_that_is_in_it(extra: dict[str, str]) -> None:
    frame = [0, [{"role": "user", "content": "x" * (0 if extra else 400_000), **extra}], None, None, [], {}]
    ask, chars = wire.ask_from(frame, [], 0)
    assert chars > 400_000
    with pytest.raises(ValueError, match="larger than"):
        wire.ask_from([1, *frame[1:]], ask.messages, chars)
    small, more = wire.ask_from([1, [{"role": "user", "content": "y"}], None, None, [], {}], ask.messages, chars)
    assert len(small.messages) == 2 and chars < more < chars + 100
    assert wire.ask_from(frame, ask.messages, chars)[1] == chars, "one that begins anew counts anew"


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no"), "ValueError: no"),
        (ValueError(), "ValueError"),
        (KeyError("k"), "KeyError: 'k'"),
        (Unprintable(), "Unprintable: (its message cannot be shown)"),
        (RecursionError("maximum recursion depth exceeded in x"), "RecursionError: maximum recursion depth exceeded"),
        (ValueError("<object object at 0x7f00aa>"), "ValueError: <object object at 0x…>"),
        (ValueError("\ud800"), "ValueError: \ufffd"),
        (ValueError("x" * 1000), "ValueError: " + "x" * 488 + "…"),
    ],
)  # fmt: skip
def test_a_failures_words_are_the_same_in_every_run(error: Exception, text: str) -> None:
    assert wire.failure_text(error) == text
