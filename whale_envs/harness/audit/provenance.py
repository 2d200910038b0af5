r"""The provenance layer: in a recorded episode, did the model write what was scored?

What counts as the model's own: what its completions say, and what a program of its own printed: one whose lines all
stand in completions, as often, but for those that compute nothing (see `_harmless`), and that found no names but those
of such programs. A search's passages do not count, whoever asked: they answer a template of the harness's as well as
the model. In chess, every move that was played has to be named in a reply since the last one, or in the one that the
last was taken from.

The check is on what happened, not on source text, and it is meant to forgive what honest harnesses do to a reply:
strip it, change its case, drop punctuation, articles and words, read `\boxed{}`, `1,234`, `025` or `70.0`, turn SAN
into UCI, close a tag, wrap a program or print its last line. Episodes that were not solved are passed over: a
default answer that is wrong gains nothing.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from whale_envs.episode import Episode, ToolCall
from whale_envs.harness.audit.finding import Finding

_UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff]")
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
#: Lines, without spaces, that a harness may put around a model's program: imports, and the frame of a `try`.
_FRAME = re.compile(r"#.*|import[\w.,]+|from[\w.]+import[\w.,*()]+|try:|finally:|pass|except(?:[\w.,()]*):")
#: Longest of these lines.
_FRAME_CHARS = 200


def provenance(episode: Episode) -> Finding | None:
    """Why an episode's score is not the model's, None when it is (or when there is none)."""
    if not episode.solved:
        return None
    if any(c.name == "move" and not c.error for c in episode.tool_calls):
        reason = next(_unwritten_moves(episode), "")
    elif _comes_from(episode.answer, _sources(episode)):
        reason = ""
    else:
        reason = f"the model wrote the answer {_brief(episode.answer)} nowhere"
    return Finding("provenance", reason, f"task {episode.task_id}") if reason else None


def _sources(episode: Episode) -> list[str]:
    """What the model said, call by call, and what its programs printed."""
    said = [_said(episode, at) for at in range(len(episode.calls))]
    printed, prepared = [], False  # whether a program of the harness's own has been where names are kept
    for call in episode.tool_calls:
        code = next((a for a in (*call.args, *call.kwargs.values()) if isinstance(a, str)), "")
        result, kept = call.result, any(a is True for a in (*call.args, *call.kwargs.values()))
        output = result.get("stdout") if isinstance(result, dict) else getattr(result, "stdout", None)
        if not isinstance(output, str):
            continue
        own = _holds(said[: call.after], code)
        if own and not (kept and prepared):
            printed.append(output)
        prepared = prepared or (kept and not own and not _adds_nothing(said[: call.after], code))
    return said + printed


def _said(episode: Episode, at: int) -> str:
    reply = episode.calls[at].reply
    calls = " ".join(_strings(reply.tool_calls)) if reply.tool_calls else ""
    return f"{reply.text} {calls}"


def _strings(value: Any) -> Iterator[str]:
    """The strings and numbers of a JSON value; a string that is JSON itself (a tool call's arguments) is opened."""
    if isinstance(value, dict | list | tuple):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _strings(inner)
    elif isinstance(value, str) and value[:1] in "{[":
        try:
            yield from _strings(msgspec.json.decode(value))
        except msgspec.DecodeError:
            yield value
    elif value is not None:
        yield str(value)


def _holds(said: list[str], code: str) -> bool:
    """Whether a program is the model's: its lines stand in what it said, and the others are harmless."""
    written = "\n".join(_squeezed(said))
    lines = Counter(_squeezed([code]))
    own = {line for line, times in lines.items() if times <= _times(line, written)}
    return bool(own) and all(_harmless(line, written) for line in lines.keys() - own)


def _adds_nothing(said: list[str], code: str) -> bool:
    """Whether a program computes nothing: imports, say."""
    written = "\n".join(_squeezed(said))
    return all(_harmless(line, written) for line in set(_squeezed([code])))


def _squeezed(texts: Iterable[str]) -> Iterator[str]:
    """The lines of texts without spaces."""
    return filter(None, ("".join(line.split()) for text in texts for line in text.splitlines()))


def _times(line: str, written: str) -> int:
    """How often a line is one of those that were written, or what a tag, a fence or a semicolon sets off in one."""
    return len(re.findall(rf"(?<![\w.]){re.escape(line)}(?![\w.])", written)) if line in written else 0


def _harmless(line: str, written: str) -> bool:
    """Whether a line computes nothing of its own: it imports, is the frame of a `try`, or prints what was written."""
    if len(line) <= _FRAME_CHARS and _FRAME.fullmatch(line):
        return True
    if not (line.startswith("print(") and line.endswith(")")):
        return False
    inner = line[len("print(") :].rstrip(")")
    inner = next((inner.removeprefix(head) for head in ("repr(", "str(", "(") if inner.startswith(head)), inner)
    return bool(inner) and _times(inner, written) > 0


def _comes_from(answer: Any, sources: list[str]) -> bool:
    """Whether each part of an answer is in one of the sources: a number by its value, a text by its words in order."""
    parts = list(_strings(answer))
    return bool(parts) and all(_found(part, sources) for part in parts)


def _found(part: str, sources: Iterable[str]) -> bool:
    wanted = _words(part)
    if not wanted or _UNSPACED.search(part):  # signs alone, or a script that puts no spaces between words
        return any("".join(_plain(part).split()) in "".join(_plain(source).split()) for source in sources)
    if len(wanted) == 1 and wanted[0].isdecimal():
        return any(wanted[0] in map(_value, _NUMBER.findall(_plain(source))) for source in sources)
    return any(_in_order(wanted, _words(source)) for source in sources)


def _in_order(wanted: list[str], said: list[str]) -> bool:
    rest = iter(said)
    return all(word in rest for word in wanted)


def _plain(text: str) -> str:
    """Without accents, case and the ways in which TeX groups digits."""
    text = unicodedata.normalize("NFKD", text)
    text = "".join(c for c in text if not unicodedata.combining(c)).casefold()
    return re.sub(r"\{,\}|\\[,!]", "", text)


def _words(text: str) -> list[str]:
    """The words of a text without articles; a number by its value."""
    found = re.findall(r"\d[\d,]*(?:\.\d+)?|[^\W\d_]+", _plain(text))
    return [_value(w) for w in found if w not in ("a", "an", "the")]


def _value(word: str) -> str:
    """A number as its digits, without separators, leading zeros and a fraction of zeros; a word as it is."""
    if not word[0].isdecimal():
        return word
    whole, _, fraction = word.replace(",", "").partition(".")
    return (whole.lstrip("0") or "0") + (f".{fraction}" if fraction.strip("0") else "")


def _unwritten_moves(episode: Episode) -> Iterator[str]:
    """Why a move that was played is not the model's, for each that is not."""
    legal: dict[str, str] = {}
    since = 0
    for call in episode.tool_calls:
        if call.name == "move" and not call.error:
            played = next((a for a in (*call.args, *call.kwargs.values()) if isinstance(a, str)), "")
            said = " ".join(_said(episode, at) for at in range(since, call.after))
            if not _named(_names_of(played, legal), said):
                yield f"it played {_brief(played)}, which the model did not name"
            since = max(call.after - 1, 0)  # a reply may name the moves that follow, too
        legal = _legal(call) or legal


def _named(names: set[str], said: str) -> bool:
    """Whether one of a move's names is a word of what was said or, where it is long enough, stands in it in parts."""
    words, squeezed = {_bare(w) for w in re.findall(r"[\w=+#-]+", said)}, _bare(said)
    return any(name in words or (len(name) >= 4 and name in squeezed) for name in names if name)


def _legal(call: ToolCall) -> dict[str, str]:
    """The legal moves that a tool's result lists, bare UCI and SAN each to the other."""
    result = call.result
    pairs = result.get("legal") if isinstance(result, dict) else getattr(result, "legal", None)
    bare = [(_bare(uci), _bare(san)) for uci, san in pairs or ()]
    return {a: b for pair in bare for a, b in (pair, pair[::-1])}


def _names_of(move: str, legal: dict[str, str]) -> set[str]:
    """The ways to write a move that is legal here."""
    name = _bare(move)
    return {name, legal.get(name, name)}


def _bare(move: str) -> str:
    """A move's name without case and signs; castling with the letter O."""
    return re.sub(r"[^a-z0-9]", "", move.casefold().replace("0-0", "o-o").replace("x", "").replace("-0", "-o"))


def _brief(value: object) -> str:
    text = " ".join(str(value).split())
    return repr(text if len(text) <= 60 else text[:57] + "...")
