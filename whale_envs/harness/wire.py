"""What crosses between a harness and the rest: JSON values, checked and copied, and frames that carry them.

Both forms of a session use it, so that a harness sees and gives the same values in-process and jailed. Standard
library only, since the jailed worker loads it by path. Bounds are in characters and levels, never in the depth of
a stack or the size of an encoding, so that both forms refuse the same values with the same words.
"""

from __future__ import annotations

import json
import math
import re
import socket
import struct
import time
from typing import Any

from whale_envs.harness.helpers import RESULT_TYPES, Ask

#: Most characters in one ask, answer, argument list or tool result (a context of 32k tokens has about 130,000);
#: every value in it counts as eight more.
MAX_CHARS = 600_000
#: Most levels of lists and dicts in a value.
MAX_DEPTH = 64
#: Most bytes in a frame: MAX_CHARS, each escaped at worst as six bytes.
MAX_FRAME = 4_000_000
#: Longest message of a failure, in characters.
MAX_FAILURE = 500

ROLES = ("system", "user", "assistant", "tool")

_VALUE = 8  # what a value costs besides its text, so that many small ones are bounded too
_LENGTH = struct.Struct("!I")
_SURROGATE = re.compile("[\ud800-\udfff]")
_ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]+")


class WireError(Exception):
    """The other side broke the protocol, or is gone."""


def clean(text: str) -> str:
    """`text` as valid Unicode: lone surrogates, which JSON cannot carry, become U+FFFD."""
    return _SURROGATE.sub("\ufffd", text)


def plain(value: Any, what: str) -> Any:
    """A copy of `value` made of JSON types alone (tuples become lists). `ValueError` says why `what` is not JSON."""
    return _walk(value, what, _Budget(), tagged=False)


def pack(value: Any, what: str) -> Any:
    """A tool's result as JSON that `unpack` turns back with its types: tuples and `RESULT_TYPES` are tagged."""
    return _walk(value, what, _Budget(), tagged=True)


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


class _Budget:
    def __init__(self) -> None:
        self.left = MAX_CHARS

    def spend(self, chars: int, what: str) -> None:
        self.left -= chars
        if self.left < 0:
            raise ValueError(f"{what} is larger than {MAX_CHARS:,} characters")


def _walk(value: Any, what: str, budget: _Budget, tagged: bool, depth: int = 0) -> Any:
    budget.spend(_VALUE, what)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        budget.spend(len(value), what)
        return clean(value)
    if isinstance(value, int):
        if value.bit_length() > 4096:
            raise ValueError(f"{what} holds an integer of more than 4096 bits")
        budget.spend(value.bit_length() // 3, what)
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{what} is not JSON: it holds {value!r}")
        return float(value)
    if depth >= MAX_DEPTH:
        raise ValueError(f"{what} is nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, list | tuple):
        items = [_walk(v, what, budget, tagged, depth + 1) for v in value]
        return {"tuple": items} if tagged and isinstance(value, tuple) else items
    kind = "dict" if isinstance(value, dict) else type(value).__name__
    if kind != "dict" and (not tagged or RESULT_TYPES.get(kind) is not type(value)):
        raise ValueError(f"{what} is not JSON: it holds a {clean(kind)}")
    fields = {}
    for key, inner in (value if kind == "dict" else vars(value)).items():
        if not isinstance(key, str):
            raise ValueError(f"{what} is not JSON: it holds the key {clean(repr(key))[:80]}, which is no string")
        budget.spend(len(key), what)
        fields[clean(key)] = _walk(inner, what, budget, tagged, depth + 1)
    return {kind: fields} if tagged else fields


def ask_of(yielded: object) -> Ask:
    """The `Ask` that a harness yielded, copied: itself, or a list of messages. `ValueError` for anything else."""
    ask = yielded if isinstance(yielded, Ask) else Ask(messages=yielded)  # type: ignore[arg-type]
    if not isinstance(ask.messages, list) or not ask.messages:
        raise ValueError(f"a harness yields a list of messages or an Ask, not {clean(type(yielded).__name__)}")
    for message in ask.messages:
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            raise ValueError(f"a message is a dict with role and content strings, not {_short(message)}")
        if message.get("role") not in ROLES:
            raise ValueError(f"a message's role is system, user, assistant or tool, not {_short(message.get('role'))}")
    if not (ask.max_tokens is None or (type(ask.max_tokens) is int and ask.max_tokens > 0)):
        raise ValueError(f"max_tokens is a positive integer or None, not {_short(ask.max_tokens)}")
    if not isinstance(ask.stop, tuple | list) or not all(isinstance(s, str) and s for s in ask.stop):
        raise ValueError(f"stop is a tuple of strings, not {_short(ask.stop)}")
    if not (ask.tools is None or (isinstance(ask.tools, list) and all(isinstance(t, dict) for t in ask.tools))):
        raise ValueError(f"tools is a list of schemas (dicts) or None, not {_short(ask.tools)}")
    if not isinstance(ask.template_kwargs, dict):
        raise ValueError(f"template_kwargs is a dict, not {_short(ask.template_kwargs)}")
    fields = plain([ask.messages, ask.tools, ask.max_tokens, ask.stop, ask.template_kwargs], "an ask")
    return Ask(fields[0], fields[1], fields[2], tuple(fields[3]), fields[4])


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


def send(sock: socket.socket, frame: Any, deadline: float | None = None) -> bytes:
    """Send a frame before `deadline` (by `time.monotonic`); returns its bytes. `TimeoutError` or `WireError`."""
    data = json.dumps(frame, ensure_ascii=False, allow_nan=False).encode()
    _arm(sock, deadline)
    try:
        sock.sendall(_LENGTH.pack(len(data)) + data)
    except TimeoutError:
        raise
    except OSError as error:
        raise WireError(f"cannot send: {error.strerror}") from None
    return data


def receive(sock: socket.socket, deadline: float | None = None) -> tuple[Any, bytes]:
    """The next frame and its bytes. `TimeoutError` past `deadline`, `WireError` for the end or what is no frame."""
    (length,) = _LENGTH.unpack(_exactly(sock, _LENGTH.size, deadline))
    if length > MAX_FRAME:
        raise WireError(f"a frame of {length:,} bytes: expected at most {MAX_FRAME:,}")
    data = _exactly(sock, length, deadline)
    try:
        return json.loads(data), data
    except (ValueError, RecursionError) as error:
        raise WireError(f"a frame that is not JSON: {type(error).__name__}") from None


def _exactly(sock: socket.socket, count: int, deadline: float | None) -> bytes:
    got = bytearray()
    while len(got) < count:
        _arm(sock, deadline)
        try:
            chunk = sock.recv(min(count - len(got), 1 << 20))
        except TimeoutError:
            raise
        except OSError as error:
            raise WireError(f"cannot receive: {error.strerror}") from None
        if not chunk:
            raise WireError("the other end is closed")
        got += chunk
    return bytes(got)


def _arm(sock: socket.socket, deadline: float | None) -> None:
    """Bound the next call on `sock` by `deadline`."""
    if deadline is None:
        return
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    sock.settimeout(left)
