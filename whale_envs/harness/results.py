"""What happens around a tool call in every step: are its arguments taken, and copies of its result. For speed.

`unpack(pack(result))` says what a copy is, for the jailed form too; here it is made at a fraction of the cost for what
tools commonly give: text and numbers, the types of `RESULT_TYPES`, lists and dicts of those. All else goes that way.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

from whale_envs.harness.helpers import RESULT_TYPES
from whale_envs.harness.wire import MAX_CHARS, MAX_DEPTH, VALUE_CHARS, pack, unpack

#: Tuples that are known to hold nothing that can change, by identity, and their characters: the legal moves of a
#: position, which come back whenever the position does. They are held, so that no other object takes their identity.
_frozen: dict[int, tuple[tuple[Any, ...], int]] = {}
MOST_FROZEN = 4096
#: Types of what `_chars` counts and nobody can change (a tuple is counted if it holds no others).
_ATOMIC = frozenset((str, int, float, bool, type(None), tuple))


def check_arguments(function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> None:
    """`TypeError` says why `function` does not take the arguments."""
    method = getattr(function, "__func__", None)
    simple, names, required = _parameters(method or function)
    given = len(args) + (method is not None)
    if simple and given <= len(names):
        left = names[given:]
        if all(name in left for name in kwargs) and all(name in kwargs for name in names[given:required]):
            return
    inspect.signature(function).bind(*args, **kwargs)


@functools.lru_cache(maxsize=256)
def _parameters(function: Callable[..., Any]) -> tuple[bool, tuple[str, ...], int]:
    """(whether all parameters are plain ones, their names, how many have no default)."""
    parameters = list(inspect.signature(function).parameters.values())
    simple = all(p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)
    return simple, tuple(p.name for p in parameters), sum(p.default is p.empty for p in parameters)


def two_copies(value: Any, what: str) -> tuple[Any, Any]:
    """Two copies of a tool's result, the record's and the harness's. `ValueError` says why `what` is not JSON."""
    chars = _chars(value, 0)
    if chars is None or chars > MAX_CHARS:
        packed = pack(value, what)
        return unpack(packed), unpack(packed)
    return _copy(value), _copy(value)


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
        return _frozen_chars(value, depth)
    if kind is list:
        return _total(value, depth)
    if RESULT_TYPES.get(kind.__name__) is kind:
        value = vars(value)
    elif kind is not dict or not all(type(key) is str and key.isascii() for key in value):
        return None
    inner = _total(value.values(), depth)
    return None if inner is None else inner + sum(map(len, value))


def _total(values: Any, depth: int) -> int | None:
    total = VALUE_CHARS
    for value in values:
        if type(value) is str and value.isascii():
            total += VALUE_CHARS + len(value)
            continue
        chars = _chars(value, depth + 1)
        if chars is None:
            return None
        total += chars
    return total


def _frozen_chars(value: tuple[Any, ...], depth: int) -> int | None:
    """As `_chars`, for a tuple of nothing but text, numbers and such tuples; None for any other."""
    known = _frozen.get(id(value))
    if known is not None and depth == 1:  # as deep as where it was found
        return known[1]
    if not all(v is None or type(v) in (str, int, float, bool, tuple) for v in value):
        return None
    chars = _total(value, depth)
    if chars is not None and depth == 1:
        if len(_frozen) >= MOST_FROZEN:
            _frozen.clear()
        _frozen[id(value)] = (value, chars)
    return chars


def _copy(value: Any) -> Any:
    """A copy of what `_chars` has counted: what can change is new, what cannot is shared."""
    kind = type(value)
    if kind is list:
        return [v if type(v) is str else _copy(v) for v in value]
    if kind is dict:
        return {key: v if type(v) is str else _copy(v) for key, v in value.items()}
    if kind in _ATOMIC:
        return value
    copy = object.__new__(kind)
    fields = vars(value)
    copy.__dict__.update(fields if _ATOMIC.issuperset(map(type, fields.values())) else _copy(fields))
    return copy


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
