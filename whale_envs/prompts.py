"""From an ask to prompt token ids, exactly: what a model saw and sampled before is kept token for token.

Any chat template of the transformers kind works. Where one refuses what a harness may say, messages are adapted
before rendering, found out once by rendering probes:

- no "tool" role (refused, or dropped without a word): a tool's result is shown as a user's message;
- no "system" role: its text opens the first user message;
- roles must alternate: messages of one role in a row become one, a blank line between them;
- no conversation without a user: the first system message is the user's, else an empty user message comes first.

The generation prompt always follows the last message, an assistant's too: an assistant's message is history, not
the beginning of the next reply.

Tool schemas are shown as the template shows them, and calls are read in the way in which it writes them (`tool_calls`);
a message whose text already has its calls, as a reply's does, shows them once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import jinja2
import msgspec

from whale_envs.episode import Call
from whale_envs.errors import UserError
from whale_envs.harness.helpers import Ask, Message
from whale_envs.tool_calls import FAMILIES, Family, ToolUse, calls_of, linked, read_calls

#: Rendered prompts that are kept for their episodes' next calls.
REMEMBERED = 1024
_MARK = "qvzxmark"
_PARAMETERS = {"type": "object", "properties": {}}
_SCHEMA = {"type": "function", "function": {"name": _MARK, "description": "A probe.", "parameters": _PARAMETERS}}


class PromptError(ValueError):
    """An ask that the chat template cannot show."""


class ChatTokenizer(Protocol):
    """What is used of a tokenizer of transformers."""

    name_or_path: str
    chat_template: Any

    @property
    def all_special_ids(self) -> list[int]:
        """The ids of the special tokens."""

    @property
    def added_tokens_decoder(self) -> dict[int, Any]:
        """Added tokens by id; `special` says whether one is special."""

    def __len__(self) -> int:
        """How many tokens there are, added ones among them."""

    def __call__(self, text: Any, **options: Any) -> Any:
        """Encode texts: `["input_ids"]` of what it returns has a list of ids for each."""

    def decode(self, token_ids: Any, **options: Any) -> Any:
        """The text of token ids."""

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        """Messages as the text of a prompt."""


class Prompts:
    """Makes prompts for one tokenizer. `ends` are the ids of the tokens that end a turn.

    Raises `UserError` for a tokenizer without a chat template, or with one that cannot render a user's message.
    """

    def __init__(self, tokenizer: ChatTokenizer, eos: Sequence[int] = ()) -> None:
        if not hasattr(tokenizer, "apply_chat_template"):
            raise UserError(f"{tokenizer!r:.80} is no tokenizer: expected one of transformers (see AutoTokenizer)")
        self.tokenizer = tokenizer
        where = tokenizer.name_or_path or type(tokenizer).__name__
        if not tokenizer.chat_template:
            raise UserError(
                f"the tokenizer of {where} has no chat template: give an instruct model, or set tokenizer.chat_template"
            )
        if not self._shows([_message("user")]):
            raise UserError(f"the chat template of {where} cannot render a user's message: give an instruct model")
        self._tools = self._shows([_message("user", "x")], [_SCHEMA])
        self._tool_role = self._shows([_message("user", "x"), _message("assistant", "y"), _message("tool")])
        self._system_role = self._shows([_message("system"), _message("user", "x")])
        self._same_role = self._shows([_message("user"), _message("user", "x")])
        self._userless = self._shows([_message("system")])
        self._family = self._call_family() if self._tools else None
        self._rendered: dict[bytes, str] = {}
        self.ends = frozenset({*eos, *self._turn_end()})
        self.end_texts = {i: self.decode([i]) for i in self.ends}

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens shown, nothing cleaned up."""
        text: str = self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    def text(self, completion: Sequence[int]) -> str:
        """What a model said with these token ids: decoded, without the token that ends its turn."""
        ended = bool(completion) and completion[-1] in self.ends
        return self.decode(completion[:-1] if ended else completion)

    def ids(self, asks: Sequence[tuple[Ask, Call | None]]) -> list[list[int] | PromptError]:
        """The prompt of each ask, which comes with its episode's previous call (None: it is the first).

        An ask that goes on from its previous call gets that call's prompt and completion ids and, after them, the
        ids of what the template renders next: the end of the assistant's turn if the model did not sample it, the
        new messages, the generation prompt. Where the template renders the past otherwise than it was (drops
        earlier thinking, say), or the ask is no continuation, the whole prompt is rendered and encoded.
        """
        parts: list[tuple[list[int], str] | PromptError] = []
        for ask, previous in asks:
            try:
                parts.append(self._split(ask, previous))
            except PromptError as error:
                parts.append(error)
        texts = [part[1] for part in parts if not isinstance(part, PromptError)]
        encoded = iter(self.encode(texts))
        return [part if isinstance(part, PromptError) else part[0] + next(encoded) for part in parts]

    def calls(self, text: str, prompt: Sequence[int], tools: list[dict[str, Any]] | None) -> list[ToolUse]:
        """The tool calls in what a model said after these prompt ids.

        None of them when it was shown no `tools`, or when its template writes calls in a way that is not known.
        """
        if not tools or self._family is None:
            return []
        thinking = self.decode(prompt[-8:]).rstrip().endswith("<think>")
        return read_calls(text, self._family, tools, thinking)

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Token ids of rendered texts; the template has put in the special tokens, none are added."""
        if not texts:
            return []
        encoded = self.tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)
        ids: list[list[int]] = encoded["input_ids"]
        return ids

    def render(self, ask: Ask) -> str:
        """The whole prompt as text. Raises `PromptError` when the template refuses it."""
        if ask.tools and not self._tools:
            raise PromptError("this model's chat template shows no tool schemas: describe the tools in a message")
        try:
            # what was rendered for a call is asked for again by the next one, to see what it adds
            key = msgspec.json.encode((ask.messages, ask.tools, ask.template_kwargs))
            if (text := self._rendered.get(key)) is not None:
                return text
            text = self._render(self._adapt(ask.messages), ask.tools, ask.template_kwargs)
            text.encode()
            if len(self._rendered) == REMEMBERED:
                del self._rendered[next(iter(self._rendered))]
            self._rendered[key] = text
        except UnicodeEncodeError:
            raise PromptError("the messages hold half of a surrogate pair, which no tokenizer can encode") from None
        except (jinja2.TemplateError, TypeError, ValueError, KeyError) as error:
            raise PromptError(f"the chat template refused the messages: {type(error).__name__}: {error}") from error
        return text

    def _split(self, ask: Ask, previous: Call | None) -> tuple[list[int], str]:
        """(ids kept from the previous call, text to be encoded after them)."""
        text = self.render(ask)
        if previous is None or not _continues(ask, previous):
            return [], text
        seen = self.render(Ask(previous.messages, previous.tools, template_kwargs=previous.template_kwargs))
        rest = _after(text, seen, previous.reply.text)
        if rest is None:
            return [], text
        prompt, completion = previous.reply.prompt_ids, previous.reply.completion_ids
        assert prompt is not None and completion is not None
        if completion and (end := self.end_texts.get(completion[-1])) and rest.startswith(end):
            rest = rest[len(end) :]
        return prompt + completion, rest

    def _render(
        self, messages: list[Message], tools: list[dict[str, Any]] | None = None, kwargs: dict[str, Any] | None = None
    ) -> str:
        text: str = self.tokenizer.apply_chat_template(
            messages, tools=tools or None, tokenize=False, add_generation_prompt=True, **(kwargs or {})
        )
        return text

    def _shows(self, messages: list[Message], tools: list[dict[str, Any]] | None = None) -> bool:
        """Whether the template renders the messages with the mark in them."""
        try:
            return _MARK in self._render(messages, tools)
        except Exception:  # a template may fail in any way: each means that it cannot render this
            return False

    def _turn_end(self) -> list[int]:
        """The special token that the template puts after an assistant's text, if it puts one."""
        messages = [_message("user", "x"), _message("assistant"), _message("user", "y")]
        if not self._shows(messages):
            return []
        tail = self.encode([self._render(messages).rpartition(_MARK)[2]])[0]
        special = {i for i, token in self.tokenizer.added_tokens_decoder.items() if token.special}
        return [i for i in tail[:1] if i in special or i in self.tokenizer.all_special_ids]

    def _call_family(self) -> Family | None:
        """The family whose reader reads a call back that the template has shown."""
        call: ToolUse = {"name": _MARK, "arguments": {_MARK: _MARK}}
        messages = [_message("user", "x"), {**_message("assistant", ""), "tool_calls": [call]}, _message("tool", "y")]
        try:
            text = self._render(linked(messages), [_SCHEMA])
        except (jinja2.TemplateError, TypeError, ValueError, KeyError):
            return None
        return next((family for family in FAMILIES if call in read_calls(text, family)), None)

    def _once(self, message: Message) -> Message:
        """A message without the calls that its text already shows."""
        if self._family is None or not message.get("tool_calls"):
            return message
        shown = [call["name"] for call in read_calls(message["content"], self._family)]
        if shown != [call["name"] for call in calls_of(message)]:
            return message
        return {key: value for key, value in message.items() if key != "tool_calls"}

    def _adapt(self, messages: list[Message]) -> list[Message]:
        messages = linked([self._once(m) for m in messages])
        if not self._tool_role:
            messages = [_message("user", m["content"]) if m["role"] == "tool" else m for m in messages]
        if not self._system_role:
            systems = "\n\n".join(m["content"] for m in messages if m["role"] == "system")
            messages = [m for m in messages if m["role"] != "system"]
            first = next((i for i, m in enumerate(messages) if m["role"] == "user"), None)
            if systems and first is None:
                messages = [_message("user", systems), *messages]
            elif systems and first is not None:
                opened = _message("user", f"{systems}\n\n{messages[first]['content']}")
                messages = [*messages[:first], opened, *messages[first + 1 :]]
        if not self._userless and not any(m["role"] == "user" for m in messages):
            first = next((i for i, m in enumerate(messages) if m["role"] == "system"), None)
            if first is None:
                messages = [_message("user", ""), *messages]
            else:
                messages = [*messages[:first], _message("user", messages[first]["content"]), *messages[first + 1 :]]
        if not self._same_role:
            merged: list[Message] = []
            for m in messages:
                if merged and merged[-1]["role"] == m["role"]:
                    merged[-1] = {**merged[-1], "content": f"{merged[-1]['content']}\n\n{m['content']}"}
                else:
                    merged.append(m)
            messages = merged
        return messages


def _message(role: str, content: str = _MARK) -> Message:
    return {"role": role, "content": content}


def _continues(ask: Ask, previous: Call) -> bool:
    """Whether the ask is the previous call's messages and reply, then more, with tools and template unchanged."""
    n = len(previous.messages)
    return (
        previous.reply.prompt_ids is not None
        and previous.reply.completion_ids is not None
        and len(ask.messages) > n
        and ask.messages[:n] == previous.messages
        and ask.messages[n] == previous.reply.view().message
        and (ask.tools or None) == (previous.tools or None)
        and ask.template_kwargs == previous.template_kwargs
    )


def _after(text: str, seen: str, reply: str) -> str | None:
    """What follows `seen` and then `reply` in `text`, where templates may trim the reply; None if they do not."""
    if not text.startswith(seen):
        return None
    for shown in (reply, reply.strip(), reply.lstrip(), reply.rstrip()):
        if text.startswith(shown, len(seen)):
            return text[len(seen) + len(shown) :]
    return None
