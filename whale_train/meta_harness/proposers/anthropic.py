"""A proposer on the Messages API: a model that reads the archive with tools and writes candidates.

One call of `propose` is one conversation: the brief (briefs/common.md and the domain's own), then tool calls until
the candidates are in or a limit is reached. A domain without a brief of its own gets the common one alone. The key is
read from ANTHROPIC_API_KEY and appears in no log and no error; the SDK reads ANTHROPIC_BASE_URL.

Failures: what asking again can mend (429, 5xx, a cut or silent connection, an error within a stream) is tried again
in place, `Limits.retries` times; then, as for refusals and answers that are cut off again and again, a
`ProposerError`. A key, model or address that is refused is the user's: `UserError`. A malformed tool call is answered
with what is wrong with it. What was handed in before a failure counts.
"""

from __future__ import annotations

import json
import os
import random
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anthropic
import httpx2

from whale_envs.errors import UserError, unknown
from whale_envs.harness import helpers
from whale_envs.harness.namespace import ALLOWED_IMPORTS
from whale_envs.services import TRANSIENT, USERS, read_key, retry_after
from whale_train.meta_harness.archive import Archive
from whale_train.meta_harness.proposers.archive_tools import Desk, ToolInputError, tool_schemas
from whale_train.meta_harness.proposers.base import Cost, Proposal, ProposerError
from whale_train.meta_harness.proposers.messages_stream import Answer, StreamError

#: The paper's proposer.
MODEL = "claude-opus-4-7"
#: Dollars a million tokens, as platform.claude.com/docs/en/about-claude/pricing said in September 2026: input,
#: written to the cache (for 5 minutes), read from the cache, output. All of these models think adaptively.
PRICES = {
    "claude-opus-4-6": (5.0, 6.25, 0.5, 25.0),
    "claude-opus-4-7": (5.0, 6.25, 0.5, 25.0),
    "claude-opus-4-8": (5.0, 6.25, 0.5, 25.0),
    "claude-opus-5": (5.0, 6.25, 0.5, 25.0),
    "claude-sonnet-4-6": (3.0, 3.75, 0.3, 15.0),
}
BRIEFS = Path(__file__).parent / "briefs"
#: Answers in a row without a tool call, or cut off, after which a conversation ends.
IDLE_ANSWERS, CUT_ANSWERS = 3, 3
#: The longest wait before a request is sent again, in seconds, whatever the service asks for.
MAX_WAIT = 60.0


@dataclass(frozen=True)
class Limits:
    """When a conversation ends, finished or not.

    Attributes:
        turns: answers of the model.
        tokens: tokens in all, those sent again and those read from a cache among them.
        dollars: by the price table.
        minutes: of wall-clock time.
        answer_tokens: the longest answer, thinking included.
        silence: seconds without a word from the service after which a connection counts as dead.
        retries: how often one request is sent again.
        backoff: seconds before it is sent again, doubled each time, with a quarter of jitter.
    """

    turns: int = 80
    tokens: int = 8_000_000
    dollars: float = 8.0
    minutes: float = 40.0
    answer_tokens: int = 32_000
    silence: float = 120.0
    retries: int = 4
    backoff: float = 1.0


class AnthropicProposer:
    """See the module. Raises `UserError` for a key that is missing or malformed and for a model without a price.

    `cost` and `exchanges` (JSON lines, one an exchange, for the log) grow as long as the proposer lives.
    """

    name = "anthropic"

    def __init__(self, model: str = MODEL, limits: Limits | None = None) -> None:
        if model not in PRICES:
            raise unknown("model of the anthropic proposer", model, PRICES)
        self.model, self.limits = model, limits or Limits()
        self.cost = Cost()
        self.exchanges: list[str] = []
        self._key = read_key("ANTHROPIC_API_KEY", "use --proposer mutation, which needs none")

    def propose(self, archive: Archive, count: int, seed: int) -> list[Proposal]:
        """Up to `count` candidates; see `Proposer.propose`. The service knows no seed, so `seed` decides nothing."""
        desk = Desk(archive, count)
        try:
            client = anthropic.Anthropic(
                api_key=self._key,
                max_retries=0,  # the SDK waits for as long as a service asks it to, be it days
                timeout=httpx2.Timeout(self.limits.silence, connect=min(10.0, self.limits.silence)),
            )
        except httpx2.InvalidURL as error:
            raise UserError(f"ANTHROPIC_BASE_URL {os.environ.get('ANTHROPIC_BASE_URL')!r}: {error}") from None
        try:
            with client:
                _Conversation(self, client, desk).run()
        except ProposerError as error:
            self._log({"ended": str(error), "submitted": len(desk.submitted)})
            if not desk.submitted:
                raise
        return desk.submitted

    def _log(self, record: dict[str, Any]) -> None:
        self.exchanges.append(self._hide(json.dumps(record, ensure_ascii=False)))

    def _hide(self, text: str) -> str:
        """A text without the key: a service may say it back."""
        return text.replace(self._key, "(the key)")

    def _pay(self, usage: dict[str, int]) -> float:
        """Add what an answer cost, broken ones too; the dollars."""
        kinds = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
        counts = [usage.get(kind, 0) for kind in kinds]
        dollars = sum(n * price for n, price in zip(counts, PRICES[self.model], strict=True)) / 1e6
        cost = self.cost
        self.cost = Cost(cost.dollars + dollars, cost.prompt_tokens + sum(counts[:3]), cost.sampled_tokens + counts[3])
        return dollars


@dataclass
class _Conversation:
    """One conversation: what was said, and the limits that it is under."""

    proposer: AnthropicProposer
    client: anthropic.Anthropic
    desk: Desk
    messages: list[dict[str, Any]] = field(default_factory=list)
    logged: int = 0  # messages that are in the log already
    turn: int = 0

    def __post_init__(self) -> None:
        self.limits = self.proposer.limits
        self.before = self.proposer.cost
        self.deadline = time.monotonic() + 60 * self.limits.minutes
        brief = {"type": "text", "text": system_prompt(self.desk.archive.domain), "cache_control": _CACHE}
        tools = tool_schemas()
        tools[-1]["cache_control"] = _CACHE
        self.request: dict[str, Any] = {
            "model": self.proposer.model,
            "max_tokens": self.limits.answer_tokens,
            "system": [brief],
            "tools": tools,
            "thinking": {"type": "adaptive", "display": "summarized"},
            "cache_control": _CACHE,  # of the last block: the next request reads all of this one from the cache
        }

    def run(self) -> None:
        """Talk until the candidates are in. Raises `ProposerError` when it ends before."""
        self._say([{"type": "text", "text": opening(self.desk)}])
        idle = cut = 0
        while self.desk.missing:
            self._check_limits()
            answer = self._ask()
            self.turn += 1
            if answer.stop_reason == "refusal":
                why = answer.stop_details.get("explanation") or answer.stop_details.get("category") or "no reason given"
                raise self._error(f"the model refused: {why}")
            if answer.stop_reason == "model_context_window_exceeded":
                raise self._error("the conversation outgrew the model's context")
            said = answer.sendable()
            if said:
                self.messages.append({"role": "assistant", "content": said})
            results = self._use_tools(answer)
            cut = cut + 1 if answer.stop_reason == "max_tokens" else 0
            idle = 0 if results or cut else idle + 1
            if cut == CUT_ANSWERS:
                raise self._error(f"{cut} answers in a row were cut off at {self.limits.answer_tokens:,} tokens")
            if idle == IDLE_ANSWERS:
                raise self._error(f"{idle} answers in a row called no tool")
            self._say([*results, {"type": "text", "text": self._status(bool(cut))}])

    def _say(self, blocks: list[dict[str, Any]]) -> None:
        self.messages.append({"role": "user", "content": blocks})

    def _use_tools(self, answer: Answer) -> list[dict[str, Any]]:
        """The results of an answer's tool calls; one that was cut off, or cannot be read, is not made."""
        results = []
        for block in answer.content:
            if block["type"] != "tool_use":
                continue
            result: dict[str, Any]
            try:
                if answer.stop_reason == "max_tokens" and block is answer.content[-1]:
                    raise ToolInputError("your answer was cut off within this call, which was not made: call it again")
                if wrong := answer.unreadable.get(block["id"]):
                    raise ToolInputError(f"the input is no JSON object ({wrong}): call it again")
                result = {"content": self.desk.use(block["name"], block["input"])}
            except ToolInputError as error:
                result = {"content": str(error), "is_error": True}
            results.append({"type": "tool_result", "tool_use_id": block["id"], **result})
        return results

    def _status(self, cut: bool) -> str:
        left = self.limits.turns - self.turn
        parts = [f"{self.desk.missing} of {self.desk.count} candidates are still to be submitted; {left} answers left."]
        if cut:
            parts.append(f"Your answer was cut off: keep each below {self.limits.answer_tokens:,} tokens.")
        if left <= 2 * self.desk.missing:
            parts.append("Submit now.")
        return " ".join(parts)

    def _check_limits(self) -> None:
        used = self.proposer.cost - self.before
        for name, value, limit in (
            ("answers", self.turn, self.limits.turns),
            ("tokens", used.prompt_tokens + used.sampled_tokens, self.limits.tokens),
            ("dollars", used.dollars, self.limits.dollars),
        ):
            if value >= limit:
                raise self._error(f"it reached the limit of {limit:,} {name}")
        if time.monotonic() > self.deadline:
            raise self._error(f"it reached the limit of {self.limits.minutes:g} minutes")

    def _ask(self) -> Answer:
        """Send what there is and take the answer; what asking again can mend is asked again."""
        for attempt in range(self.limits.retries + 1):
            answer, begun, wait = Answer(), time.monotonic(), 0.0
            failure = "interrupted"
            try:
                self._stream(answer)
                failure = ""
            except (StreamError, httpx2.HTTPError, anthropic.APIError) as error:
                failure = self._described(error)
                wait = self._wait(error, failure)
            finally:  # a broken answer has cost something too
                self._note(answer, time.monotonic() - begun, failure)
            if not failure:
                return answer
            wait = wait or self.limits.backoff * 2**attempt * random.uniform(0.75, 1.0)
            wait = min(wait, MAX_WAIT)
            if attempt == self.limits.retries or time.monotonic() + wait > self.deadline:
                break
            time.sleep(wait)
        raise self._error(f"{failure} (asked {attempt + 1} times)")

    def _stream(self, answer: Answer) -> None:
        create: Any = self.client.messages.create  # plain JSON goes in, where the SDK's types want its own
        with create(**self.request, messages=self.messages, stream=True) as stream:
            for event in anthropic.Stream.raw_events(stream.response):  # pings too: a deadline must hold beside them
                if time.monotonic() > self.deadline:
                    raise self._error(f"it reached the limit of {self.limits.minutes:g} minutes")
                if event.data:
                    answer.take(event.data)
        if not answer.finished:
            raise StreamError("the stream ended before the answer did")

    def _described(self, error: Exception) -> str:
        """What went wrong, in one line."""
        if isinstance(error, anthropic.APITimeoutError | httpx2.TimeoutException):
            return f"nothing was heard for {self.limits.silence:g} s"
        if isinstance(error, anthropic.APIStatusError):
            return self._line(f"HTTP {error.status_code} ({error.api_message or error.message})")
        kind = f"{type(error).__name__}: " if isinstance(error, httpx2.HTTPError) else ""
        return self._line(f"{kind}{error}")

    def _wait(self, error: Exception, failure: str) -> float:
        """The seconds that the service asks to wait, 0 for none. Raises when asking again would not help."""
        if not isinstance(error, anthropic.APIStatusError):
            return 0.0
        status = error.status_code
        if status in USERS:
            where = f"the Messages API at {self.client.base_url} answers {failure}"
            what = USERS[status].format(key="ANTHROPIC_API_KEY", url="ANTHROPIC_BASE_URL")
            raise UserError(self._line(f"{where}: {what}, or use --proposer mutation"))
        if status not in TRANSIENT and status < 500:
            raise self._error(failure)
        return retry_after(error.response)

    def _note(self, answer: Answer, seconds: float, failure: str) -> None:
        """Pay for an exchange and log it: each message once, the brief and the tools with the first."""
        dollars = self.proposer._pay(answer.usage)
        record: dict[str, Any] = {"at": datetime.now(UTC).isoformat(timespec="seconds")}
        if not self.logged:
            record["request"] = self.request
        record |= {"sent": self.messages[self.logged :], "received": answer.content}
        record |= {"stop_reason": answer.stop_reason, "usage": answer.usage, "dollars": round(dollars, 6)}
        self.proposer._log({**record, "seconds": round(seconds, 3), "failure": failure})
        self.logged = len(self.messages)

    def _error(self, why: str) -> ProposerError:
        return ProposerError(self._line(f"{self.proposer.model}: {why}"))

    def _line(self, text: str) -> str:
        return self.proposer._hide(" ".join(text.split()))[:400]


_CACHE = {"type": "ephemeral"}


def system_prompt(domain: str) -> str:
    """The brief: what holds in every domain, what holds in this one, and what a harness may import."""
    own = BRIEFS / f"{domain}.md"
    parts = [(BRIEFS / "common.md").read_text(), own.read_text() if own.exists() else ""]
    source = Path(helpers.__file__).read_text()
    imports = f"A harness may import `whale_envs.harness`, {', '.join(f'`{m}`' for m in sorted(ALLOWED_IMPORTS))}."
    return "\n".join([*parts, f"## `whale_envs.harness`, whole\n\n{imports}\n\n```python\n{source}```\n"])


def opening(desk: Desk) -> str:
    """The first message: what is asked for, and the list of candidates."""
    archive = desk.archive
    phase = archive.phase.key if archive.phase else "search"
    return (
        f"Domain {archive.domain}, {phase}, round {sum(r.phase == phase for r in archive.rounds) + 1}. "
        f"Submit {desk.count} candidates.\n\n{desk.use('list_candidates', {})}"
    )
