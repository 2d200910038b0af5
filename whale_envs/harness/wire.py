"""What crosses between a harness and the rest: JSON values, checked and copied, and frames that carry them.

Both forms of a session use it, so that a harness sees and gives the same values in-process and jailed. Bounds are in
characters and levels, never in the depth of a stack or the size of an encoding, so that both forms refuse the same
values with the same words.
"""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from whale_envs.harness.helpers import RESULT_TYPES, Ask, Message

#: Most characters in one ask, answer, argument list or tool result (a context of 32k tokens has about 130,000);
#: every value in it counts as VALUE_CHARS more.
MAX_CHARS = 600_000
#: What a value counts besides its text, so that many small ones are bounded too.
VALUE_CHARS = 8
#: Most levels of lists and dicts in a value.
MAX_DEPTH = 64
#: Most bytes in a frame: MAX_CHARS, each escaped at worst as six bytes.
MAX_FRAME = 4_000_000
#: Longest message of a failure, in characters.
MAX_FAILURE = 500

ROLES = ("system", "user", "assistant", "tool")

_SEQUENCES, _SCALARS = (list, tuple), (str, int, float)
_READ = 1 << 16  # less than what malloc maps anew each time
_LENGTH = struct.Struct("!I")
_SURROGATE = re.compile("[\ud800-\udfff]")
#: What a message of a role and a text counts besides the two, and an ask besides its messages where it has no more.
_MESSAGE_CHARS, _ASK_CHARS = 3 * VALUE_CHARS + len("rolecontent"), 6 * VALUE_CHARS
_ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]+")


class WireError(Exception):
    """The other side broke the protocol, or is gone."""


class Gone(WireError):
    """The other side is gone."""


def clean(text: str) -> str:
    """`text` as valid Unicode: lone surrogates, which JSON cannot carry, become U+FFFD."""
    if type(text) is str and text.isascii():
        return text
    try:
        return str.encode(text).decode()  # much faster than a search for what is hardly ever there
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text)


def plain(value: Any, what: str) -> Any:
    """A copy of `value` made of JSON types alone (tuples become lists). `ValueError` says why `what` is not JSON."""
    if type(value) is str and len(value) < MAX_CHARS // 2 and value.isascii():
        return value  # as most answers are
    return _Walk(what, tagged=False).any(value, 0)


def pack(value: Any, what: str) -> Any:
    """A tool's result as JSON that `unpack` turns back with its types: tuples and `RESULT_TYPES` are tagged."""
    return _Walk(what, tagged=True).any(value, 0)


def unpack(value: Any) -> Any:
    """The value that `pack` was given, copied."""
    if isinstance(value, list):
        return [unpack(v) for v in value]
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "tuple":
        return tuple(unpack(v) for v in inner)
    fields = {k: unpack(v) for k, v in inner.items()}
    return fields if kind == "dict" else RESULT_TYPES[kind](**fields)


class _Walk:
    """A copying walk over a value. Every ask goes through two, so it is written for speed: text comes first."""

    def __init__(self, what: str, tagged: bool) -> None:
        self.what, self.tagged, self.left = what, tagged, MAX_CHARS

    def spend(self, chars: int) -> None:
        """So many characters of what is allowed."""
        self.left -= chars
        if self.left < 0:
            raise ValueError(f"{self.what} is larger than {MAX_CHARS:,} characters")

    def any(self, value: Any, depth: int) -> Any:
        """The copy of a value at a level."""
        if value is None or isinstance(value, _SCALARS):
            return self.scalar(value)
        self.spend(VALUE_CHARS)
        if depth >= MAX_DEPTH:
            raise ValueError(f"{self.what} is nested more than {MAX_DEPTH} levels deep")
        if isinstance(value, _SEQUENCES):
            items = [self.any(v, depth + 1) for v in value]
            return {"tuple": items} if self.tagged and isinstance(value, tuple) else items
        if isinstance(value, dict):
            copy = self.fields(value, depth + 1)
            return {"dict": copy} if self.tagged else copy
        kind = type(value)
        if self.tagged and RESULT_TYPES.get(kind.__name__) is kind:
            return {kind.__name__: self.fields(vars(value), depth + 1)}
        raise ValueError(f"{self.what} is not JSON: it holds a {clean(kind.__name__)}")

    def fields(self, items: dict[Any, Any], depth: int) -> dict[str, Any]:
        """The copy of a dict's content."""
        copy = {}
        for key, inner in items.items():
            if type(key) is str and type(inner) is str:
                self.spend(len(key) + VALUE_CHARS + len(inner))
                copy[clean(key)] = clean(inner)
                continue
            if not isinstance(key, str):
                shown = clean(repr(key))[:80]
                raise ValueError(f"{self.what} is not JSON: it holds the key {shown}, which is no string")
            self.spend(len(key))
            copy[clean(key)] = self.any(inner, depth)
        return copy

    def scalar(self, value: Any) -> Any:
        """The copy of what holds nothing."""
        self.spend(VALUE_CHARS)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            self.spend(len(value))
            return clean(value)
        if isinstance(value, int):
            if value.bit_length() > 4096:
                raise ValueError(f"{self.what} holds an integer of more than 4096 bits")
            self.spend(value.bit_length() // 3)
            return int(value)
        if not math.isfinite(value):
            raise ValueError(f"{self.what} is not JSON: it holds {value!r}")
        return float(value)


def plain_call(args: tuple[Any, ...], kwargs: dict[str, Any], what: str) -> tuple[list[Any], dict[str, Any]]:
    """The two parts of `plain([list(args), kwargs], what)`, at once for the words and numbers that most calls have."""
    chars = 0
    for word in args:
        if type(word) is not str or not word.isascii():
            break
        chars += VALUE_CHARS + len(word)
    else:
        for key, word in kwargs.items():
            if type(key) is not str or not key.isascii() or type(word) is not int or not 0 <= word < 1 << 63:
                break
            chars += 2 * VALUE_CHARS + 21 + len(key)
        else:
            if chars <= MAX_CHARS // 2:
                return list(args), kwargs
    copied: tuple[list[Any], dict[str, Any]] = tuple(plain([list(args), kwargs], what))
    return copied


class Asks:
    """What the harness of one episode yields, as asks: itself an `Ask`, or a list of messages.

    Most go on from the last one. Of those only the new messages are checked and copied, so that a step costs the same
    however long the episode is; the asks share the messages before, of which `==` says that they are unchanged.
    """

    def __init__(self) -> None:
        self._last: list[Message] = []  # the messages of the last ask
        self._chars = 0  # what they count

    def next(self, yielded: object) -> Ask:
        """The ask that was yielded, copied. `ValueError` for anything else."""
        ask = yielded if isinstance(yielded, Ask) else None
        messages: Any = yielded if ask is None else ask.messages
        kept, chars = self._last, self._chars
        if not (type(messages) is list and messages[: len(kept)] == kept):
            kept, chars = [], 0
        if ask is None or _bare(ask):
            new = _texts(messages, len(kept))
            if new is not None and chars + new[1] + _ASK_CHARS <= MAX_CHARS:
                self._last, self._chars = kept + new[0], chars + new[1]
                return Ask(self._last.copy())
        ask = ask or Ask(messages)
        _check_ask(ask, len(kept))
        ask, self._chars = _copied(ask, kept, chars)
        self._last = ask.messages.copy()
        return ask


def _bare(ask: Ask) -> bool:
    return ask.tools is None and ask.max_tokens is None and ask.stop == () and ask.template_kwargs == {}


def _texts(messages: object, start: int) -> tuple[list[Message], int] | None:
    """Copies of the messages from `start` on, and what they count; None if any has more than a role and a text."""
    if type(messages) is not list or not messages:
        return None
    chars, copies = 0, []
    for message in messages[start:]:
        if type(message) is not dict or len(message) != 2:
            return None
        role, content = message.get("role"), message.get("content")
        if type(role) is not str or role not in ROLES or type(content) is not str:
            return None
        if not content.isascii() and clean(content) != content:
            return None
        chars += _MESSAGE_CHARS + len(role) + len(content)
        first = next(iter(message)) == "role"  # an episode's JSON keeps the order
        copies.append({"role": role, "content": content} if first else {"content": content, "role": role})
    return copies, chars


def fields_of(ask: Ask, before: Sequence[Message]) -> list[Any]:
    """An ask as it travels. One that goes on from the messages `before`, as most do, carries only the new ones."""
    goes_on = len(ask.messages) >= len(before) and all(map(_same, ask.messages, before))
    after = len(before) if goes_on else 0
    return [after, ask.messages[after:], ask.tools, ask.max_tokens, ask.stop, ask.template_kwargs]


def ask_from(fields: Any, before: Sequence[Message], chars: int) -> tuple[Ask, int]:
    """The ask whose `fields_of` arrived after one with the messages `before`, which count `chars`; what its own count.

    It is bounded as `Asks` bounds one, whatever the other side has counted. `ValueError` if it is none.
    """
    if not (isinstance(fields, list) and len(fields) == 6 and isinstance(fields[1], list)):
        raise ValueError("a malformed ask")
    if type(fields[0]) is not int or fields[0] not in (0, len(before)):
        raise ValueError("an ask that goes on from another than the last")
    kept = list(before[: fields[0]])
    chars = chars if kept else 0
    new = _texts(fields[1], 0) if fields[2:] == [None, None, [], {}] else None
    if new is not None and chars + new[1] + _ASK_CHARS <= MAX_CHARS:
        return Ask(kept + new[0]), chars + new[1]
    ask = Ask(kept + fields[1], *fields[2:])
    _check_ask(ask, len(kept))
    return _copied(ask, kept, chars)


def _copied(ask: Ask, kept: list[Message], chars: int) -> tuple[Ask, int]:
    """The ask with all but its first messages, which are `kept` and count `chars`, copied; what its messages count."""
    walk = _Walk("an ask", tagged=False)
    walk.spend(chars)
    messages = kept + [walk.any(message, 2) for message in ask.messages[len(kept) :]]
    counted = MAX_CHARS - walk.left
    walk.spend(2 * VALUE_CHARS)  # the list of them, and that of all fields
    tools, max_tokens, stop, template_kwargs = (
        walk.any(field, 1) for field in (ask.tools, ask.max_tokens, ask.stop, ask.template_kwargs)
    )
    return Ask(messages, tools, max_tokens, tuple(stop), template_kwargs), counted


def _same(one: Message, other: Message) -> bool:
    """Whether two messages would be the same JSON, byte for byte: `==` does not tell 1 from True, nor any order."""
    if one is other:  # as it is in a worker
        return True
    if one != other or [*one] != [*other]:
        return False
    return {*map(type, one.values())} == {str} or repr(one) == repr(other)


def _check_ask(ask: Ask, checked: int = 0) -> None:
    """`ValueError` says what makes it no ask; whether what is inside is JSON is for `plain` to say.

    So many of its messages have been checked before.
    """
    if not isinstance(ask.messages, list) or not ask.messages:
        raise ValueError(f"a harness yields a list of messages or an Ask, not {clean(type(ask.messages).__name__)}")
    for message in ask.messages[checked:]:
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            raise ValueError(f"a message is a dict with role and content strings, not {_short(message)}")
        if message.get("role") not in ROLES:
            raise ValueError(f"a message's role is system, user, assistant or tool, not {_short(message.get('role'))}")
    if not (ask.max_tokens is None or (type(ask.max_tokens) is int and ask.max_tokens > 0)):
        raise ValueError(f"max_tokens is a positive integer or None, not {_short(ask.max_tokens)}")
    if not isinstance(ask.stop, _SEQUENCES) or not all(isinstance(s, str) and s for s in ask.stop):
        raise ValueError(f"stop is a tuple of strings, not {_short(ask.stop)}")
    if not (ask.tools is None or (isinstance(ask.tools, list) and all(isinstance(t, dict) for t in ask.tools))):
        raise ValueError(f"tools is a list of schemas (dicts) or None, not {_short(ask.tools)}")
    if not isinstance(ask.template_kwargs, dict):
        raise ValueError(f"template_kwargs is a dict, not {_short(ask.template_kwargs)}")


def _short(value: object) -> str:
    return clean(_ADDRESS.sub("at 0x…", repr(value)))[:80]


def failure_text(error: BaseException) -> str:
    """What an episode's record says of an exception that a harness raised.

    The same in every run of the same harness: no memory addresses, and no words that depend on how deep the stack
    was when a recursion hit its limit.
    """
    try:
        text = str(error)
    except Exception:  # a harness's own exception class may fail to print itself
        text = "(its message cannot be shown)"
    if isinstance(error, RecursionError):
        text = "maximum recursion depth exceeded"
    text = text[: 4 * MAX_FAILURE]
    text = _ADDRESS.sub("at 0x…", f"{type(error).__name__}: {text}".removesuffix(": "))
    return clean(text if len(text) <= MAX_FAILURE else text[:MAX_FAILURE] + "…")


def _go_on() -> None:
    pass


class Channel:
    """Frames over a stream socket, for one thread. A frame is its length and then JSON in UTF-8.

    `check` is called after each system call that did not get a frame through (the time limit of the socket, if it has
    one, included); it returns to try again, or raises.

    It works on the descriptor, which stays the caller's: a worker is a fresh fork, which pays for each page of memory
    that it is the first to write to, and the `socket` module is many of them.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._got = bytearray()

    def send(self, frame: Any, check: Callable[[], object] = _go_on) -> None:
        """Send a frame. `Gone` if nobody is there."""
        data = msgspec.json.encode(frame)
        rest: bytes | memoryview = _LENGTH.pack(len(data)) + data
        while True:
            try:
                sent = os.write(self._fd, rest)
            except BlockingIOError:  # the socket's time limit
                sent = 0
            except OSError as error:
                raise Gone(f"cannot send: {error.strerror}") from None
            if sent == len(rest):
                return
            rest = memoryview(rest)[sent:]
            check()

    def receive(self, check: Callable[[], object] = _go_on) -> Any:
        """The next frame. Raises `Gone` at the end, `WireError` for what is no frame."""
        got, end = self._got, self._end()
        while not end or len(got) < end:
            try:
                read = os.read(self._fd, _READ)
            except BlockingIOError:
                check()
                continue
            except OSError as error:
                raise Gone(f"cannot receive: {error.strerror}") from None
            if not read:
                raise Gone("the other end is closed")
            got += read
            end = self._end()
            if not end or len(got) < end:
                check()
        data = bytes(memoryview(got)[_LENGTH.size : end])
        del got[:end]
        try:
            return msgspec.json.decode(data)
        except (ValueError, RecursionError) as error:
            raise WireError(f"a frame that is not JSON: {type(error).__name__}") from None

    def _end(self) -> int:
        """Where the first frame ends, 0 if its length has not arrived yet."""
        if len(self._got) < _LENGTH.size:
            return 0
        length: int = _LENGTH.unpack_from(self._got)[0]
        if length > MAX_FRAME:
            raise WireError(f"a frame of {length:,} bytes: expected at most {MAX_FRAME:,}")
        return _LENGTH.size + length
