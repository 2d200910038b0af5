r"""Math with a code tool: problems with integer answers, scored by the strict verifier unless another is chosen.

The world offers one tool, `python(code, keep=False) -> ExecResult`. The answer is the string that the harness returns,
by convention the content of the model's `\boxed{}`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from whale_envs.data.folder import kept_splits
from whale_envs.data.math_files import content_key
from whale_envs.data.math_mini import mini_splits
from whale_envs.domain import Domain, World, format_followed
from whale_envs.episode import Episode, Verdict
from whale_envs.errors import ToolUseError
from whale_envs.harness.helpers import ExecResult, boxed
from whale_envs.sandbox import Session
from whale_envs.task import Splits, Task
from whale_envs.tools.python_tool import python_session, run_python
from whale_envs.verifiers.choose import MathVerifier, math_verifier
from whale_envs.verifiers.math_answer import integer

#: Seconds of wall clock and megabytes of memory for one program (the paper's limits).
TIMEOUT, MEMORY_MB = 30.0, 1024
#: The mini world's programs take milliseconds: one that takes longer loops for ever.
MINI_TIMEOUT = 5.0

#: Runs a program: in a session, or (None) on its own.
RunCode = Callable[[str, Session | None], ExecResult]


class MathWorld(World):
    """One problem. `run_code` executes a program in isolation, `verify` scores an answer."""

    def __init__(self, task: Task, run_code: RunCode, verify: MathVerifier) -> None:
        self._task = task
        self._run_code = run_code
        self._verify = verify
        self._kept: Session | None = None
        self.tools: dict[str, Callable[..., Any]] = {"python": self._python}

    def _python(self, code: str, keep: bool = False) -> ExecResult:
        """Run a program; what it prints is in the result's `stdout`, its traceback in `stderr`.

        On its own, or, with `keep`, where the episode's earlier programs with `keep` left their names and imports.
        """
        if not isinstance(code, str):
            raise ToolUseError(f"python(code) takes a program as a string, not {type(code).__name__}")
        if not isinstance(keep, bool):
            raise ToolUseError(f"python(code, keep) takes keep=True or keep=False, not {keep!r:.80}")
        if keep and self._kept is None:
            self._kept = python_session()
        result = self._run_code(code, self._kept if keep else None)
        # without its time, which is real: a harness that showed it would play other episodes from the same seed
        return ExecResult(result.stdout, result.stderr, result.status)

    def close(self) -> None:
        """See `World.close`: ends the process in which names were kept."""
        if self._kept is not None:
            self._kept.close()

    def verdict(self, answer: Any) -> Verdict:
        """The verifier's: by default 1 when `answer` is the gold integer (see `whale_envs.verifiers.math_answer`)."""
        return self._verify(answer, self._task.gold)

    def behaviours(self, episode: Episode) -> dict[str, bool]:
        """See `World.behaviours`: an answer, boxed or not, an integer; code that ran or failed; a token cap."""
        runs = [call.result.status for call in episode.tool_calls if call.name == "python" and not call.error]
        return {
            "format followed": format_followed(episode),
            "boxed answer found": any(boxed(call.reply.text) is not None for call in episode.calls),
            "answer given": episode.answer is not None,
            "answer is an integer": isinstance(episode.answer, str) and integer(episode.answer) is not None,
            "code ran": "ok" in runs,
            "code failed": any(status != "ok" for status in runs),
            "cap hit": episode.truncated,
        }

    def solve(self) -> str:
        """Print the gold answer with the tool and return what was printed."""
        result = self._python(f"print({self._task.gold!r})")
        return result.stdout.strip()


class MathCode(Domain):
    """Math problems: the mini world, or problems from files (see `whale_envs.data.math_files`).

    Args:
        dataset: a path to a prepared folder, a file, or a folder of files (see `whale_envs.data.folder.load_splits`);
            or task sets made elsewhere; None for the mini world.
        run_code: what executes programs in place of the sandboxed tool (a test's fake, a generator of demonstrations).
        verifier: "integer", or "math-verify", which also takes problems whose answers are no integers (see
            `whale_envs.verifiers`).

    Raises `UserError` for a file that cannot be used.
    """

    name = "math"
    waits = True

    def __init__(
        self, dataset: str | Splits | None = None, run_code: RunCode | None = None, verifier: str = "integer"
    ) -> None:
        self.verifier, self._verify = verifier, math_verifier(verifier)
        if isinstance(dataset, str):
            self.splits = kept_splits(dataset, self.name, verifier)
        else:
            self.splits = mini_splits() if dataset is None else dataset
        timeout = MINI_TIMEOUT if dataset is None else TIMEOUT
        self._run_code = run_code or (
            lambda code, session: run_python(code, timeout=timeout, memory_mb=MEMORY_MB, session=session)
        )

    def content(self, task: Task) -> str:
        """See `Domain.content`."""
        return content_key(task.shown["question"])

    def world(self, task: Task) -> MathWorld:
        """See `Domain.world`."""
        return MathWorld(task, self._run_code, self._verify)
