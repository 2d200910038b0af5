"""The mask, token by token, as a person reads it: «what the model sampled» and what it was shown.

Prompts are made as a policy makes them, so that these rows are those of real episodes; replies are a letter a token.
"""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_prompts import BYTES, PROMPTS, TEMPLATES, next_ids, prompts_of, reply_of

from whale_envs import Episode, Reply, Verdict
from whale_envs.episode import Call
from whale_envs.harness.helpers import Ask, Message, assistant, system, tool, user
from whale_train.rsft.rows import IGNORE, Row, rows
from whale_train.rsft.select import select

END = "«<|im_end|>»"


def printed(row: Row, template: str) -> str:
    """A row's text, each token that carries a label in its own marks."""
    shown = ""
    for token, label in zip(row.input_ids, row.labels, strict=True):
        text = PROMPTS[template].decode([token])
        assert label in (IGNORE, token)
        shown += text if label == IGNORE else f"«{text}»"
    return shown


def play(template: str, start: list[Message], turns: list[tuple[str, bool, list[Message]]]) -> Episode:
    """An episode in which the model says each turn's text (ended by itself or not) and is then shown the messages."""
    prompts = PROMPTS[template]
    reply = reply_of(prompts, start, *turns[0][:2])
    calls, history = [Call(start, reply)], start
    for (_, _, new), (said, ended, _) in itertools.pairwise(turns):
        prompt = next_ids(prompts, history, reply, new)
        history = [*history, reply.view().message, *new]
        spoken = reply_of(prompts, [user("x")], said, ended)
        reply = Reply(said, spoken.finish_reason, [], prompt, spoken.completion_ids)
        calls.append(Call(history, reply))
    return Episode("t", "d", "h", 0, calls=calls, verdict=Verdict(1.0, ""))


def marked(text: str) -> str:
    return "".join(f"«{letter}»" for letter in text)


def test_a_tools_messages_carry_no_label() -> None:
    episode = play("chatml", [system("S"), user("q")], [("ab", True, [tool("found")]), ("c", True, [])])
    assert [printed(row, "chatml") for row in rows(episode)] == [
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nq<|im_end|>\n"
        f"<|im_start|>assistant\n{marked('ab')}{END}\n"
        "<|im_start|>tool\nfound<|im_end|>\n"
        f"<|im_start|>assistant\n{marked('c')}{END}"
    ]


def test_thinking_that_the_template_keeps_stays_in_one_row() -> None:
    # Qwen3's keeps it while a tool answers: the row goes on
    said = "<think>\nhm\n</think>\n\nab"
    episode = play("drops-thinking", [user("q")], [(said, True, [tool("found")]), ("c", True, [])])
    assert [printed(row, "drops-thinking") for row in rows(episode)] == [
        f"<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n{marked(said)}{END}\n"
        "<|im_start|>user\n<tool_response>\nfound\n</tool_response><|im_end|>\n"
        f"<|im_start|>assistant\n{marked('c')}{END}"
    ]


def test_thinking_that_the_template_drops_is_trained_on_where_it_was_thought() -> None:
    # and drops it once the user speaks again: the model no longer sees it, so the second call is a row of its own
    said = "<think>\nhm\n</think>\n\nab"
    episode = play("drops-thinking", [user("q")], [(said, True, [user("r")]), ("c", True, [])])
    assert [printed(row, "drops-thinking") for row in rows(episode)] == [
        f"<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n{marked(said)}{END}",
        "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\nab<|im_end|>\n<|im_start|>user\nr<|im_end|>\n"
        f"<|im_start|>assistant\n{marked('c')}{END}",
    ]


def test_an_end_of_turn_that_was_forced_carries_no_label() -> None:
    # a stop string ended the first reply: the template closes the turn, the model did not
    episode = play("chatml", [user("q")], [("ab", False, [tool("found")]), ("c", True, [])])
    stopped = [msgspec.structs.replace(call.reply, finish_reason="stop") for call in episode.calls]
    episode.calls = [Call(call.messages, reply) for call, reply in zip(episode.calls, stopped, strict=True)]
    assert [printed(row, "chatml") for row in rows(episode)] == [
        f"<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n{marked('ab')}<|im_end|>\n"
        "<|im_start|>tool\nfound<|im_end|>\n"
        f"<|im_start|>assistant\n{marked('c')}{END}"
    ]
    assert select([episode]) == [episode]


@pytest.mark.parametrize("cut", [0, 1])
def test_an_episode_with_a_call_that_was_cut_off_is_not_trained_on(cut: int) -> None:
    turns = [("ab", cut != 0, [tool("found")]), ("c", cut != 1, [])]
    episode = play("chatml", [user("q")], turns)
    assert [call.reply.finish_reason == "length" for call in episode.calls] == [cut == 0, cut == 1]
    assert select([episode]) == []


def test_what_a_harness_wrote_in_the_models_name_carries_no_label() -> None:
    start = [user("q"), assistant("As I said:"), user("go on")]
    episode = play("chatml", start, [("ab", True, [])])
    assert [printed(row, "chatml") for row in rows(episode)] == [
        "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\nAs I said:<|im_end|>\n"
        "<|im_start|>user\ngo on<|im_end|>\n"
        f"<|im_start|>assistant\n{marked('ab')}{END}"
    ]


#: Templates that do more to the past than those of `test_prompts`.
ODD = {
    "trims": "{% for m in messages %}{{ m.role }}\n{{ m.content | trim }}<|im_end|>{% endfor %}<|im_start|>",
    "merges": (
        "{% set ns = namespace(role='') %}{% for m in messages %}{% if m.role != ns.role %}<|im_end|><|im_start|>"
        "{{ m.role }}\n{% endif %}{{ m.content }}{% set ns.role = m.role %}{% endfor %}<|im_end|><|im_start|>"
    ),
    "counts": "{{ messages | length }}{% for m in messages %}{{ m.role }}{{ m.content }}<|im_end|>{% endfor %}",
    "forgets": "{% for m in messages[-1:] %}{{ m.role }}{{ m.content }}<|im_end|>{% endfor %}",
}
ANY = {**PROMPTS, **{name: prompts_of(template) for name, template in ODD.items()}}
#: What templates trim, split at or take for their own, and characters of several tokens.
TEXTS = st.lists(
    st.sampled_from(["<|im_end|>", "<|im_start|>", "<think>", "</think>", "\n", " ", "ab", "é", "👩‍👧", "\ufeff", "q"]),
    max_size=4,
).map("".join)


@st.composite
def sampled(draw: st.DrawFn, template: str) -> list[int]:
    """Tokens of a reply: a text's, a byte each or as the tokenizer has it, or any; perhaps cut within a letter."""
    prompts, text = ANY[template], draw(TEXTS)
    kinds = [
        [prompts.tokenizer.backend_tokenizer.token_to_id(BYTES[byte]) for byte in text.encode()],
        prompts.encode([text])[0],
        draw(st.lists(st.integers(0, len(prompts.tokenizer) - 1), max_size=4)),
    ]
    ids = draw(st.sampled_from(kinds))[: draw(st.integers(0, 9))]
    first = next((at for at, token in enumerate(ids) if token in prompts.ends), None)
    if first is not None:
        return ids[: first + 1]
    end = draw(st.sampled_from([[], [prompts.tokenizer.eos_token_id]]))
    return [*ids, *end] or [5]


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_whatever_the_template_each_call_is_trained_on_once_behind_what_it_saw(data: st.DataObject) -> None:
    template = data.draw(st.sampled_from([*TEMPLATES, *ODD]))
    prompts, messages, calls = ANY[template], [user(data.draw(TEXTS))], list[Call]()
    for _ in range(data.draw(st.integers(1, 3))):
        (prompt,) = prompts.ids([(Ask(messages), calls[-1] if calls else None)])
        assert isinstance(prompt, list)
        seen = [*(calls[-1].reply.prompt_ids or []), *(calls[-1].reply.completion_ids or [])] if calls else []
        if prompt[: len(seen)] == seen:  # what is new is the template's, to the letter
            assert prompts.render(Ask(messages)).endswith(prompts.decode(prompt)[len(prompts.decode(seen)) :])
        else:
            assert prompt == prompts.encode([prompts.render(Ask(messages))])[0]
        completion = data.draw(sampled(template))
        reply = Reply(prompts.text(completion), "stop", [], prompt, completion)
        calls.append(Call(messages, reply))
        role = data.draw(st.sampled_from([user, tool, assistant]))
        messages = [*messages, reply.view().message, role(data.draw(TEXTS))]
    trained = [
        (row.input_ids[:at], token)
        for row in rows(Episode("t", "d", "h", 0, calls=calls, verdict=Verdict(1.0, "")))
        for at, (token, label) in enumerate(zip(row.input_ids, row.labels, strict=True))
        if label != IGNORE
    ]
    assert trained == [
        ([*(call.reply.prompt_ids or []), *(call.reply.completion_ids or [])[:at]], token)
        for call in calls
        for at, token in enumerate(call.reply.completion_ids or [])
    ]
