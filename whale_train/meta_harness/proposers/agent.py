"""A proposer that is an agent: a model behind a service reads the archive with tools and writes candidates.

One call of `propose` is one conversation: the brief, then tool calls until the candidates are in or a limit is
reached. Every exchange is logged, without the key.

Failures: what asking again can mend (429, 5xx, a cut or silent connection, an error within a stream) is tried again
in place, `Limits.retries` times; then, as for refusals and answers that are cut off again and again, a
`ProposerError`. A key, model or address that is refused is the user's: `UserError`. A malformed tool call is answered
with what is wrong with it. What was handed in before a failure counts.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from whale_envs import Domain
from whale_envs.services import Patience, ServiceError, asked, described
from whale_train.meta_harness.archive import Archive
from whale_train.meta_harness.proposers.archive_tools import Desk, ToolInputError, tool_schemas
from whale_train.meta_harness.proposers.base import Cost, Proposal, ProposerError, ProposerSpent
from whale_train.meta_harness.proposers.brief import opening, system_prompt
from whale_train.meta_harness.proposers.service import Answer, Service, StreamError, ToolResult

#: Answers in a row without a tool call, or cut off, after which a conversation ends.
IDLE_ANSWERS, CUT_ANSWERS = 3, 3
#: The longest wait before a request is sent again, in seconds, whatever the service asks for.
MAX_WAIT = 60.0
#: How services say that a conversation is longer than the model's context (vLLM and OpenAI, llama.cpp, others).
_OUTGROWN = re.compile(r"context (length|size|window)")


@dataclass(frozen=True)
class Limits:
    """When a conversation ends, finished or not.

    Attributes:
        turns: answers of the model.
        tokens: tokens in all, those sent again and those read from a cache among them.
        dollars: by the service's prices.
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


class AgentProposer:
    """See the module. `domain` is where drafts are tried; `cost` and `exchanges` (JSON lines, one an exchange, for
    the log) grow as long as it lives."""

    def __init__(self, service: Service, domain: Domain, limits: Limits | None = None) -> None:
        self.service, self.domain, self.limits = service, domain, limits or Limits()
        self.name = service.name
        self.cost = Cost()
        self.exchanges: list[str] = []

    def propose(self, archive: Archive, count: int, seed: int) -> list[Proposal]:
        """Up to `count` candidates; see `Proposer.propose`. The service is given `seed` if it knows any."""
        desk = Desk(archive, count, self.domain)
        try:
            _Conversation(self, desk, seed).run()
        except ProposerError as error:
            self._log({"ended": str(error), "submitted": len(desk.submitted)})
            if not desk.submitted:
                raise
        return desk.submitted

    def _log(self, record: dict[str, Any]) -> None:
        line = json.dumps(record, ensure_ascii=False)
        self.exchanges.append(self.service.endpoint.without_key(line))  # a service may say it back


@dataclass
class _Conversation:
    """One conversation: what was said, and the limits that it is under."""

    proposer: AgentProposer
    desk: Desk
    seed: int
    messages: list[dict[str, Any]] = field(default_factory=list)
    logged: int = 0  # messages that are in the log already
    turn: int = 0

    def __post_init__(self) -> None:
        self.service, self.limits = self.proposer.service, self.proposer.limits
        self.before = self.proposer.cost
        self.deadline = time.monotonic() + 60 * self.limits.minutes
        archive = self.desk.archive
        brief = system_prompt(archive.domain, archive.phase.edits if archive.phase else "all")
        self.request = self.service.request(brief, tool_schemas(), self.limits.answer_tokens, self.seed)

    def run(self) -> None:
        """Talk until the candidates are in. Raises `ProposerError` when it ends before, `ProposerSpent` at a limit."""
        self.messages += self.service.told([], opening(self.desk))
        idle = cut = 0
        while self.desk.missing:
            self._check_limits()
            answer = self._ask()
            self.turn += 1
            if answer.end == "refused":
                raise self._error(f"the model refused: {answer.refusal or 'no reason given'}")
            if answer.end == "full":
                raise self._error("the conversation outgrew the model's context")
            self.messages += answer.sent_back()
            results = self._use_tools(answer)
            cut = cut + 1 if answer.end == "cut" else 0
            idle = 0 if results or cut else idle + 1
            if cut == CUT_ANSWERS:
                raise self._error(f"{cut} answers in a row were cut off at {self.limits.answer_tokens:,} tokens")
            if idle == IDLE_ANSWERS:
                raise self._error(f"{idle} answers in a row called no tool")
            self.messages += self.service.told(results, self._status(bool(cut)))

    def _use_tools(self, answer: Answer) -> list[ToolResult]:
        """The results of an answer's tool calls; one that was cut off, or cannot be read, is not made."""
        results = []
        calls = answer.calls
        for call in calls:
            try:
                if answer.end == "cut" and call is calls[-1]:
                    raise ToolInputError("your answer was cut off within this call, which was not made: call it again")
                if call.wrong:
                    raise ToolInputError(f"the input is no JSON object ({call.wrong}): call it again")
                results.append(ToolResult(call.id, self.desk.use(call.name, call.input)))
            except ToolInputError as error:
                results.append(ToolResult(call.id, str(error), is_error=True))
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
                raise ProposerSpent(self._line(f"it reached the limit of {limit:,} {name}"))
        self._check_time()

    def _check_time(self) -> None:
        if time.monotonic() > self.deadline:
            raise ProposerSpent(self._line(f"it reached the limit of {self.limits.minutes:g} minutes"))

    def _ask(self) -> Answer:
        """Send what there is and take the answer; what asking again can mend is asked again."""
        limits = self.limits
        while True:
            left = self.deadline - time.monotonic()
            patience = Patience(limits.retries, limits.backoff, MAX_WAIT, limits.silence, left)
            try:
                answer: Answer = asked(self.service.endpoint, self.service.sdk, self._exchange, patience)
                return answer
            except ServiceError as error:
                if not (_OUTGROWN.search(str(error)) and self.service.shorten(self.messages)):
                    raise ProposerError(str(error)) from None

    def _exchange(self) -> Answer:
        """Send a request once and take the answer. What it cost counts, be it broken or not."""
        answer, begun, failure = self.service.answer(), time.monotonic(), "interrupted"
        body = {**self.request, "messages": [*self.request.get("messages", ()), *self.messages]}
        try:
            with self.service.stream(body, self.limits.silence) as lines:
                for data in self._events(lines):
                    answer.take(data)
            if not answer.finished:
                raise StreamError("the stream ended before the answer did")
            if self.service.metered and not answer.usage:
                raise self._error("it answers without usage, so that what it costs is not known")
            failure = ""
        except Exception as error:
            failure = self._line(described(error, self.service.sdk, self.limits.silence))
            raise
        finally:
            cost = self.service.cost(answer.usage)
            self._note(answer, cost, time.monotonic() - begun, failure)
        return answer

    def _events(self, lines: Iterator[str]) -> Iterator[str]:
        """The data of the events in a stream of lines, or all of the lines where they are none: an answer in one
        piece. The deadline holds beside what only keeps the connection open."""
        rest = []
        for line in lines:
            self._check_time()
            if line.startswith("data:"):
                yield line.removeprefix("data:").strip()
            elif not line.startswith(("event:", "id:", "retry:", ":")):
                rest.append(line)
        if whole := "\n".join(rest).strip():
            yield whole

    def _note(self, answer: Answer, cost: Cost, seconds: float, failure: str) -> None:
        """Pay for an exchange and log it: each message once, the brief and the tools with the first."""
        self.proposer.cost += cost
        record: dict[str, Any] = {"at": datetime.now(UTC).isoformat(timespec="seconds")}
        if not self.logged:
            record["request"] = self.request
        record |= {"sent": self.messages[self.logged :], "received": answer.received}
        record |= {"stop_reason": answer.stop_reason, "usage": answer.usage, "dollars": round(cost.dollars, 6)}
        self.proposer._log({**record, "seconds": round(seconds, 3), "failure": failure})
        self.logged = len(self.messages)

    def _error(self, why: str) -> ProposerError:
        return ProposerError(self._line(why))

    def _line(self, text: str) -> str:
        return self.service.endpoint.line(text)
