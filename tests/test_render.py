"""The page of an episode: all of it is there, nothing of it acts, nothing is fetched."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import chess.svg
import gymnasium
import pytest
from harness_zoo import BODIES, in_one_file
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_domain import Toy, toy_harness

from whale_envs import HarnessEnv, Reply
from whale_envs.episode import Episode, read_episodes, write_episodes
from whale_envs.render import page

#: Elements that the page has: none that runs or loads anything.
ELEMENTS = set("html head meta title style body h1 h2 table tr th td div b span pre details summary figure".split())
ELEMENTS |= set("figcaption svg defs g path circle rect use line polygon radialgradient stop desc".split())


class Reader(HTMLParser):
    """Checks that elements nest and are known ones; keeps the text of each `pre`."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.pres: list[str] = []
        self.figures = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ELEMENTS, tag
        for name, value in attrs:
            assert not name.startswith("on") and name not in ("src", "srcset", "data", "action")
            assert name not in ("href", "xlink:href") or (value or "").startswith("#"), (name, value)
        self.figures += tag == "figure"
        self.pres += [""] if tag == "pre" else []
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "pre":
            self.pres[-1] += data


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == [] and "default-src 'none'" in unescape(text)
    assert text.count("url(") == text.count("url(#") and "@import" not in text and "http-equiv" in text
    text.encode()
    return reader


def played(env: HarnessEnv, replies: list[Any], **options: Any) -> Episode:
    _, info = env.reset(seed=0, options=options or None)
    for reply in replies:
        if "record" in info:
            break
        *_, info = env.step(reply)
    episode: Episode = info["record"]
    return episode


@settings(max_examples=40, deadline=None)
@given(st.text(st.characters(exclude_categories=())))
def test_any_text_is_shown_as_text(text: str) -> None:
    hostile = f"</pre><script>alert(1)</script><img src=x onerror=y>{text}"
    env = HarnessEnv(
        Toy(), harness=toy_harness("r = yield [user(task.question)]\nyield [user(r.text)]\nraise KeyError(r.text)")
    )
    reader = read(page(played(env, [hostile, Reply(hostile, "length", [{"name": hostile}])])))
    shown = [pre for pre in reader.pres if "alert(1)" in pre]
    assert len(shown) >= 3
    assert all(pre.startswith("</pre><script>") or "KeyError" in pre or '{"name"' in pre for pre in shown)


def test_each_message_is_shown_once_with_the_tools_in_between() -> None:
    env = HarnessEnv(Toy(), harness=toy_harness(), render_mode="html")
    env.reset(seed=0, options={"task": "weight-1"})
    env.step("look here")
    waiting = env.render()
    assert isinstance(waiting, str) and "not finished" in waiting and "Model call 2" in waiting
    assert read(waiting).pres.count("look here\nlook 1 \ufffd\nlook here\nlook 1 \ufffd") == 1
    env.step("<answer>GOLD-weight-1</answer>")
    text = env.render()
    assert isinstance(text, str)
    reader = read(text)
    for message in ("Guess.", "weight 1?", "look here", "<answer>GOLD-weight-1</answer>"):
        assert reader.pres.count(message) == 1
    assert 'class="right">1<' in text and text.index("look(&quot;look here&quot;, k=2)") < text.index("Model call 2")
    assert reader.figures == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # "yields when closed" goes on doing so
@pytest.mark.parametrize("name", BODIES)
def test_whatever_a_harness_does_has_a_page(name: str, zoo: HarnessEnv) -> None:
    read(page(played(zoo, [str(list(BODIES).index(name)), *"abcdef"])))


@pytest.fixture(scope="module")
def zoo() -> HarnessEnv:
    return HarnessEnv(Toy(), harness=toy_harness(in_one_file(BODIES)))


def test_chess_shows_every_position_from_the_solvers_side(tmp_path: Path) -> None:
    env = gymnasium.make("whale/Chess", render_mode="html", harness="strong").unwrapped
    assert isinstance(env, HarnessEnv)
    tasks = [t for t in env.tasks if len(t.gold.line) == 3]
    black = next(t for t in tasks if t.shown["side"] == "black")
    white = next(t for t in tasks if t.shown["side"] == "white")
    for task in (black, white):
        replies = [f"<move>{uci}</move>" for uci in task.gold.line[::2]]
        env.reset(seed=0, options={"task": task.id})
        env.step("<move>a1a1</move>")  # refused: no position comes of it
        for reply in replies:
            *_, info = env.step(reply)
        assert info["verdict"].score == 1
        text = env.render()
        assert isinstance(text, str)
        assert read(text).figures == 3 and text.count("<svg") == 3
        assert text.count('class="arrow"') == 2 * 2  # a shaft and a head each
        first = chess.svg.board(chess.Board(task.shown["fen"]), orientation=task is white, size=300)
        squares = re.findall(r'<rect[^>]*class="square[^>]*>', first)
        assert squares == re.findall(r'<rect[^>]*class="square[^>]*>', text)[:64]
        write_episodes(tmp_path / "e.jsonl", [info["record"]])
        (kept,) = read_episodes(tmp_path / "e.jsonl")
        assert page(kept) == text
