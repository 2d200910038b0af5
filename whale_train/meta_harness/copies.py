"""What a model copied from what it was shown, and the same done with something else that it is shown.

A harness that has solved its task may have the model copy the answer, in a form of its own: "put the line above into
the tag named say". The replies of the real policy to that harness show the form, and which piece goes where.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from whale_envs import Episode
from whale_envs.episode import Call
from whale_envs.harness.helpers import Message

#: What parts of a line stand between.
_BETWEEN = re.compile(r": |[\"“”`]")
#: Where a piece of a text is: its line, counted from the beginning or (negative) from the end, and the part of it.
Place = tuple[int, int | None]


class Copied(NamedTuple):
    """A reply to `asked` messages with a piece of the newest in it: what is before and after it, where it was."""

    asked: int
    before: str
    after: str
    places: tuple[Place, ...]

    def of(self, text: str, number: int) -> str:
        """The reply with the piece of another text that is there, by one of the places, the `number`-th of them."""
        there = dict(_pieces(text))
        return self.before + there.get(self.places[number % len(self.places)], text) + self.after


def copies(episodes: Iterable[Episode]) -> list[Copied]:
    """Every copy in the replies of some episodes."""
    return [copied for episode in episodes for call in episode.calls for copied in _copied(call)]


def newest(messages: Sequence[Message]) -> str:
    """The newest message that is not the model's own, or the newest."""
    return next((m["content"] for m in reversed(messages) if m["role"] != "assistant"), messages[-1]["content"])


def _copied(call: Call) -> Iterator[Copied]:
    places: dict[str, list[Place]] = {}
    for place, piece in _pieces(newest(call.messages)):
        if piece in call.reply.text:
            places.setdefault(piece, []).append(place)
    for piece, where in places.items():
        found = re.search(rf"(?<!\w){re.escape(piece)}(?!\w)", call.reply.text)
        if found:
            before, after = call.reply.text[: found.start()], call.reply.text[found.end() :]
            yield Copied(len(call.messages), before, after, tuple(where))


def _pieces(text: str) -> Iterator[tuple[Place, str]]:
    """The lines of a text and the parts of each, without space and full stop at their ends; none is empty."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        parts = _BETWEEN.split(line)
        for part, piece in ((None, line), *(enumerate(parts) if len(parts) > 1 else ())):
            if bare := piece.strip(" ."):
                yield (number, part), bare
                yield (number - len(lines), part), bare
