"""What happens around a tool call in every step: copies of its result. For speed.

`unpack(pack(result))` says what a copy is, for the jailed form too; here it is made at a fraction of the cost for what
tools commonly give: text and numbers, the types of `RESULT_TYPES`, lists and dicts of those. All else goes that way.
"""

from __future__ import annotations

import math
from typing import Any

from whale_envs.harness.helpers import RESULT_TYPES, BoardView, Passage
from whale_envs.harness.wire import MAX_CHARS, MAX_DEPTH, VALUE_CHARS, pack, unpack

#: Positions (as results) and passages (one level down in one) that are known to hold nothing that can change, by
#: identity, and their characters. They come back whenever the position or the query does. They are held, so that no
#: other object takes their identity.
_frozen: dict[int, tuple[Any, int]] = {}
MOST_FROZEN = 4096
#: Longest position or passage that is held, in characters.
MAX_HELD = 4_000
#: Types of what `_chars` counts and nobody can change (a tuple is counted if it holds no others).
_ATOMIC = frozenset((str, int, float, bool, type(None), tuple))


def two_copies(value: Any, what: str) -> tuple[Any, Any]:
    """A tool's result twice: for the record, and for the harness. `ValueError` says why `what` is not JSON.

    What can change is new in both. What is frozen is new for the harness alone, which may get past that.
    """
    if type(value) is BoardView and id(value) in _frozen:
        return value, _copy(value)
    copies = _passages(value)
    if copies is not None:
        return copies
    chars = _chars(value, 0)
    if chars is None or chars > MAX_CHARS:
        packed = pack(value, what)
        return unpack(packed), unpack(packed)
    return _kept(value), _copy(value)


def _passages(value: Any) -> tuple[Any, Any] | None:
    """The two copies of a list of passages that have all come back, as most have; None for anything else."""
    if type(value) is not list:
        return None
    chars, copies = VALUE_CHARS, []
    for passage in value:
        known = _frozen.get(id(passage))
        if known is None or type(passage) is not Passage:
            return None
        chars += known[1]
        copies.append(copy := object.__new__(Passage))
        copy.__dict__.update(passage.__dict__)
    return (value.copy(), copies) if chars <= MAX_CHARS else None


def _chars(value: Any, depth: int) -> int | None:
    """What `pack` counts for a value that it would take as it is; None for any other, and for what is uncommon."""
    kind = type(value)
    if kind is str:
        return VALUE_CHARS + len(value) if value.isascii() or _encodes(value) else None
    if value is None or kind is bool:
        return VALUE_CHARS
    if kind is int:
        return VALUE_CHARS + value.bit_length() // 3 if value.bit_length() <= 4096 else None
    if kind is float:
        return VALUE_CHARS if math.isfinite(value) else None
    if depth >= MAX_DEPTH:
        return None
    if kind is tuple:
        return _tuple_chars(value, depth)
    if kind is list:
        return _total(value, depth)
    if RESULT_TYPES.get(kind.__name__) is kind:
        return _result_chars(value, depth)
    if kind is not dict:
        return None
    for key in value:
        if type(key) is not str or not key.isascii():
            return None
    inner = _total(value.values(), depth)
    return None if inner is None else inner + sum(map(len, value))


def _total(values: Any, depth: int) -> int | None:
    total = VALUE_CHARS
    for value in values:
        if type(value) is str and value.isascii():
            total += VALUE_CHARS + len(value)
            continue
        if depth == 0 and (known := _frozen.get(id(value))) is not None:
            total += known[1]
            continue
        chars = _chars(value, depth + 1)
        if chars is None:
            return None
        total += chars
    return total


def _tuple_chars(value: tuple[Any, ...], depth: int) -> int | None:
    """As `_chars`, for a tuple of nothing but text, numbers and such tuples; None for any other."""
    return _total(value, depth) if _ATOMIC.issuperset(map(type, value)) else None


def _result_chars(value: Any, depth: int) -> int | None:
    """As `_chars`, for one of `RESULT_TYPES` with nothing but text, numbers and such tuples; None for any other."""
    total = VALUE_CHARS
    for name, field in vars(value).items():
        if type(field) is str and field.isascii():
            total += len(name) + VALUE_CHARS + len(field)
            continue
        chars = _chars(field, depth + 1) if type(field) in _ATOMIC else None
        if chars is None:
            return None
        total += len(name) + chars
    held = (type(value) is Passage and depth == 1) or (type(value) is BoardView and depth == 0)
    if held and total <= MAX_HELD:
        _hold(value, total)
    return total


def _hold(value: Any, chars: int) -> None:
    if len(_frozen) >= MOST_FROZEN:
        _frozen.clear()
    _frozen[id(value)] = (value, chars)


def _kept(value: Any) -> Any:
    """A copy of what `_chars` has counted in which what can change is new, and the rest is shared."""
    kind = type(value)
    if kind is list:
        return [_kept(v) if type(v) in (list, dict) else v for v in value]
    return {key: _kept(v) for key, v in value.items()} if kind is dict else value


def _copy(value: Any) -> Any:
    """As `_kept`, with what is frozen new, too, but for tuples: there is no getting past theirs."""
    kind = type(value)
    if kind is list:
        return list(map(_copy, value))
    if kind is dict:
        return {key: v if type(v) is str else _copy(v) for key, v in value.items()}
    if kind in _ATOMIC:
        return value
    copy = object.__new__(kind)
    copy.__dict__.update(vars(value))
    return copy


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
