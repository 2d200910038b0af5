"""Prompts: what was seen and sampled is kept token for token, and decodes to what the template renders."""

from __future__ import annotations

import copy

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from policy_models import tiny_tokenizer
from transformers import PreTrainedTokenizerFast

from whale_envs.episode import Call, Reply
from whale_envs.errors import UserError
from whale_envs.harness.helpers import Ask, Message, assistant, system, tool, user
from whale_envs.prompts import PromptError, Prompts

END = "<|im_end|>"
CHATML = tiny_tokenizer().chat_template

#: SmolLM2's: a system prompt of its own when none is given.
DEFAULT_SYSTEM = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
#: Like Qwen3's: thinking before the last user message is dropped, tool results are shown inside a user's turn.
DROPS_THINKING = (
    "{%- set ns = namespace(last=0) %}{%- for m in messages %}"
    "{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}"
    "{%- for m in messages %}{%- if m.role == 'assistant' and loop.index0 < ns.last %}"
    "{{- '<|im_start|>assistant\n' + m.content.split('</think>')[-1].lstrip('\n') + '<|im_end|>\n' }}"
    "{%- elif m.role == 'tool' %}"
    "{{- '<|im_start|>user\n<tool_response>\n' + m.content + '\n</tool_response><|im_end|>\n' }}"
    "{%- else %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
#: Like Gemma's: no system role, no tool role, strict turns, everything trimmed.
STRICT = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content | trim + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
#: Shows users and assistants, and says nothing of all others; no special token ends a turn.
SILENT = (
    "{% for m in messages %}{% if m.role == 'user' %}### User: {{ m.content }}\n"
    "{% elif m.role == 'assistant' %}### Assistant: {{ m.content }}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}### Assistant: {% endif %}"
)
#: Like Qwen3.5's: refuses a conversation without a user.
NEEDS_USER = (
    "{% if messages | selectattr('role', 'equalto', 'user') | list | length == 0 %}"
    "{{ raise_exception('No user query found in messages.') }}{% endif %}" + CHATML
)
TEMPLATES = {
    "chatml": CHATML,
    "default-system": DEFAULT_SYSTEM,
    "drops-thinking": DROPS_THINKING,
    "strict": STRICT,
    "silent": SILENT,
    "needs-user": NEEDS_USER,
}


def prompts_of(template: str) -> Prompts:
    tokenizer: PreTrainedTokenizerFast = copy.deepcopy(tiny_tokenizer())
    tokenizer.chat_template = template
    return Prompts(tokenizer)


PROMPTS = {name: prompts_of(template) for name, template in TEMPLATES.items()}
#: Text without what a template might trim or take for its own.
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="<>#|"), min_size=1, max_size=20).filter(
    lambda t: t == t.strip() and t.isprintable()
)


def next_ids(prompts: Prompts, history: list[Message], reply: Reply, new: list[Message]) -> list[int]:
    ask = Ask([*history, reply.view().message, *new])
    (ids,) = prompts.ids([(ask, Call(history, reply))])
    assert isinstance(ids, list), ids
    return ids


def reply_of(prompts: Prompts, history: list[Message], text: str, ended: bool = True) -> Reply:
    """A reply whose tokens are not those that encoding its text gives: a byte a token."""
    (prompt,) = prompts.ids([(Ask(history), None)])
    assert isinstance(prompt, list), prompt
    letters = prompts.tokenizer.backend_tokenizer
    ids = [i for byte in text.encode() for i in [letters.token_to_id(BYTES[byte])]]
    assert prompts.decode(ids) == text
    end = [prompts.tokenizer.eos_token_id] if ended else []
    return Reply(text, "stop" if ended else "length", [], prompt, ids + end)


def _bytes_to_unicode() -> dict[int, str]:
    """GPT-2's alphabet of bytes."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in shown]
    return {**{b: chr(b) for b in shown}, **{b: chr(256 + n) for n, b in enumerate(hidden)}}


BYTES = _bytes_to_unicode()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(
    st.sampled_from(sorted(TEMPLATES)), st.booleans(), TEXT, TEXT, st.lists(TEXT, min_size=1, max_size=3), st.booleans()
)
def test_a_continued_prompt_keeps_the_ids_and_decodes_to_the_template(
    name: str, with_system: bool, question: str, said: str, found: list[str], ended: bool
) -> None:
    prompts = PROMPTS[name]
    ended = ended and name != "silent"  # that template has no token for it
    history = [*([system("Be brief.")] if with_system else []), user(question)]
    reply = reply_of(prompts, history, said, ended)
    for turn, text in enumerate(found):
        new = [tool(text)] if turn % 2 == 0 else [user(text)]
        ids = next_ids(prompts, history, reply, new)
        history = [*history, reply.view().message, *new]
        kept = [*(reply.prompt_ids or []), *(reply.completion_ids or [])]
        assert ids[: len(kept)] == kept
        assert prompts.decode(ids) == prompts.render(Ask(history))
        reply = msgspec.structs.replace(reply, prompt_ids=ids)


def test_a_turn_that_was_cut_off_is_closed() -> None:
    prompts = PROMPTS["chatml"]
    cut, ended = (reply_of(prompts, [user("q")], "abc", ended) for ended in (False, True))
    assert next_ids(prompts, [user("q")], cut, [user("r")]) == next_ids(prompts, [user("q")], ended, [user("r")])


def test_another_end_token_than_the_templates_is_kept_and_the_turn_closed_too() -> None:
    tokenizer = copy.deepcopy(tiny_tokenizer())
    prompts = Prompts(tokenizer, eos=[tokenizer.pad_token_id])
    reply = reply_of(prompts, [user("q")], "abc", ended=False)
    reply = Reply("abc", "stop", [], reply.prompt_ids, [*(reply.completion_ids or []), tokenizer.pad_token_id])
    ids = next_ids(prompts, [user("q")], reply, [user("r")])
    assert prompts.decode(ids).endswith(f"abc<|endoftext|>{END}\n<|im_start|>user\nr{END}\n<|im_start|>assistant\n")


def test_thinking_that_the_template_drops_makes_a_new_prompt() -> None:
    prompts = PROMPTS["drops-thinking"]
    reply = reply_of(prompts, [user("q")], "<think>\nhm\n</think>\n\nabc")
    kept = [*(reply.prompt_ids or []), *(reply.completion_ids or [])]
    assert next_ids(prompts, [user("q")], reply, [tool("found")])[: len(kept)] == kept
    fresh = next_ids(prompts, [user("q")], reply, [user("next")])
    assert fresh[: len(kept)] != kept and "hm" not in prompts.decode(fresh)


@pytest.mark.parametrize(
    "change",
    [
        lambda ask: Ask(ask.messages[1:]),
        lambda ask: Ask([user("other"), *ask.messages[1:]]),
        lambda ask: Ask([ask.messages[0], assistant("edited"), *ask.messages[2:]]),
        lambda ask: Ask(ask.messages, template_kwargs={"enable_thinking": False}),
        lambda ask: Ask(ask.messages[:1]),
    ],
)
def test_history_that_was_rewritten_is_rendered_anew(change: object) -> None:
    prompts = PROMPTS["chatml"]
    reply = reply_of(prompts, [user("q")], "abcd efgh")
    ask = change(Ask([user("q"), reply.view().message, user("r")]))  # type: ignore[operator]
    (ids,) = prompts.ids([(ask, Call([user("q")], reply))])
    assert ids == prompts.encode([prompts.render(ask)])[0]


def test_a_reply_without_ids_is_rendered_anew() -> None:
    prompts = PROMPTS["chatml"]
    ids = next_ids(prompts, [user("q")], Reply("abc"), [user("r")])
    assert ids == prompts.encode([prompts.render(Ask([user("q"), assistant("abc"), user("r")]))])[0]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize(
    "messages",
    [
        [system("SYS"), user("USR"), assistant("ASS"), tool("TOO")],
        [user("USR"), assistant("ASS"), tool("TOO"), user("UTH"), user("URD")],
        [system("SYS"), system("SYT"), user("USR")],
        [system("SYS")],
        [system("SYS"), user("USR"), assistant("ASS"), assistant("ASV"), user("UTH")],
    ],
)
def test_every_message_reaches_the_prompt_in_order(name: str, messages: list[Message]) -> None:
    text = PROMPTS[name].render(Ask(messages))
    places = [text.index(m["content"]) for m in messages]
    assert places == sorted(places)


def test_the_turns_end_is_found_in_the_template() -> None:
    assert PROMPTS["chatml"].ends == {tiny_tokenizer().eos_token_id}
    assert PROMPTS["silent"].ends == frozenset()


def test_one_bad_ask_leaves_the_others_alone() -> None:
    prompts = PROMPTS["chatml"]
    good, bad = Ask([user("q")]), Ask([user("q")], template_kwargs={"conversation": []})
    ids, error, same = prompts.ids([(good, None), (bad, None), (good, None)])
    assert ids == same and isinstance(error, PromptError)


@pytest.mark.parametrize(
    ("template", "says"), [(None, "no chat template"), ("{{ raise_exception('no') }}", "cannot render")]
)
def test_a_tokenizer_that_cannot_chat_is_refused(template: str | None, says: str) -> None:
    with pytest.raises(UserError, match=says) as error:
        prompts_of(template)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
