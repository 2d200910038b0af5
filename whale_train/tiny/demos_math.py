r"""Demonstrations for the math model: a scripted expert plays fresh problems through the shipped harnesses.

The expert acts on what it has been shown, nothing else: it writes a program for the question, boxes the number that
comes back, and mends its program when something else does. The harnesses are h0 and the strong one with their
constants and texts redrawn, so that the model meets many. No problem of the shipped splits is among the problems, nor
any of their held-out families. Programs are the expert's own, so they are evaluated in this process: the sandbox
would take a hundred times as long as the rest.
"""

from __future__ import annotations

import functools
import random
import re
import traceback
from collections.abc import Iterator

from whale_envs import Harness, HarnessEnv, Splits, Task, TaskSet
from whale_envs.data.math_files import content_key, task_id
from whale_envs.data.math_mini import NAMES, OBJECTS, Problem, generate, mini_splits
from whale_envs.domains.math_code import MathCode
from whale_envs.harness.helpers import ExecResult, Message
from whale_envs.harness.load import load_harness

#: Strings that are to be single tokens.
TOKENS: list[str] = [
    *(f"{space}{name}" for space in ("", " ") for name in NAMES),
    *(f" {thing}" for thing in OBJECTS),
    *("<python>", "</python>", "\\boxed{", "print(x)", "from math import ", "sum(range("),
]
#: Share of demonstrations with mistakes in the noisy part, and of each mistake a turn there.
NOISY, NO_FORMAT, NO_CODE, WRONG, ERROR, MISCOPY = 0.75, 0.06, 0.06, 0.26, 0.18, 0.04
#: A long number is miscopied more often; a program that failed is given up, or handed in again with another error.
LONG, MISCOPY_LONG, GIVE_UP, ERROR_AGAIN = 5, 0.4, 0.4, 0.4
#: The few mistakes of the clean part, all of them mended: what a reminder and an error message are answered with.
CLEAN_NO_FORMAT, CLEAN_ERROR = 0.03, 0.06
#: Problems made at once, and harnesses that a stream of demonstrations draws from.
BLOCK, HARNESSES = 200, 40

INSTRUCTIONS = [
    "Compute with <python>code</python>, then answer with \\boxed{integer}.",
    "Write <python>code</python> that prints the result. Answer in \\boxed{}.",
    "Solve it with Python in <python>...</python> and give the answer as \\boxed{...}.",
    "Use <python>code</python>. The answer goes in \\boxed{}.",
    "Answer with \\boxed{integer}.",
]
REMINDERS = [
    "Reply with <python>code</python> or \\boxed{integer}.",
    "Compute it with <python>code</python> first.",
    "Write code in <python>...</python> or answer in \\boxed{}.",
    "Write <python>...</python> or \\boxed{...}.",
    "That was not in the right format. Reply with <python>...</python> or \\boxed{...}.",
    "No tag was found. Please answer in the required format.",
    "Put the final answer in \\boxed{}.",
    "Do not answer yet: use the tool first.",
    "Check this, then give the final answer.",
    "Give the final answer now.",
    "Try again.",
]
SILENCES = ["Nothing was printed.", "No output.", "The program printed nothing.", "Nothing was found. Try again."]
#: Said in a system prompt, or at the end of the instruction, in a few harnesses.
ADVICE = [
    "Think step by step.",
    "Be brief.",
    "Follow the format.",
    "Use the tool before you answer.",
    "Do not guess.",
    "Check the result before you answer.",
    "You are a careful assistant.",
    "Read everything that is shown.",
]
#: Operations taken for another by mistake.
SWAPS = {
    "+=": "-=", "-=": "+=", "*=": "+=", "//=": "%=", "%=": "//=", "//": "*", "*": "+", "gcd": "lcm", "lcm": "gcd",
}  # fmt: skip


def variant(source: str, constants: dict[str, object]) -> str:
    """A harness's source with some of its module constants set to other values."""
    for name, value in constants.items():
        source, found = re.subn(rf"^{name} = .*$", lambda _, n=name, v=value: f"{n} = {v!r}", source, flags=re.M)  # type: ignore[misc]
        if found != 1:
            raise ValueError(f"the harness has no constant {name}")
    return source


def harnesses(draw: random.Random, count: int) -> list[Harness]:
    """Variants of the shipped harnesses, half of them of h0."""
    found = []
    for i in range(count):
        constants: dict[str, object] = {"LINES": draw.choice([1, 1, 2, 4])}
        if draw.random() < 0.5:
            advice = f" {draw.choice(ADVICE)}" if draw.random() < 0.4 else ""
            constants["INSTRUCTION"] = draw.choice(INSTRUCTIONS) + advice
        if i % 2:
            constants |= {"TURNS": draw.choice([2, 2, 3, 4]), "CHARACTERS": draw.choice([4, 4, 5, 6, 8, 40])}
        else:
            constants |= {"TURNS": draw.randint(3, 6), "CHARACTERS": draw.choice([40, 100, 200])}
            if draw.random() < 0.6:
                constants |= {"REMINDER": draw.choice(REMINDERS), "UNCHECKED": draw.choice(REMINDERS)}
                constants["SILENT"] = draw.choice(SILENCES)
        shipped = load_harness("h0" if i % 2 else "strong", "math")
        source = variant(shipped.source, constants)
        if draw.random() < 0.15:
            source = source.replace("import boxed, ", "import boxed, system, ")
            source = source.replace("[user(f", f"[system({draw.choice(ADVICE)!r}), user(f")
        found.append(Harness(source, "demonstration", trusted=True))
    return found


def evaluate(code: str) -> ExecResult:
    """Run a program that this module wrote, here and now: same output and last line of stderr as the sandboxed tool."""
    printed: list[str] = []
    try:
        exec(code, {"print": lambda *values: printed.append(" ".join(map(str, values)))})
    except Exception as error:
        stderr = "".join(traceback.format_exception_only(error))
        return ExecResult("".join(f"{line}\n" for line in printed), stderr, "error")
    return ExecResult("".join(f"{line}\n" for line in printed), "", "ok")


class Expert:
    """Solves one problem, with mistakes at random if `noise`."""

    def __init__(self, problem: Problem, draw: random.Random, noise: bool) -> None:
        self.problem, self.draw, self.noise = problem, draw, noise
        self.tried = False

    def __call__(self, messages: tuple[Message, ...]) -> str:
        """The next reply."""
        shown = [m["content"].strip().rpartition("\n")[2] for m in messages if m["role"] == "tool"]
        number = re.search(r"-?[0-9]+$", shown[-1]) if shown else None
        if number is not None:
            return self._answer(number[0])
        if shown and self._slips(GIVE_UP):
            return self._answer(self._guess())
        if self._slips(NO_CODE) and not shown:
            return self._answer(self._guess())
        return self._program(again=bool(shown))

    def _program(self, again: bool) -> str:
        code = self.problem.program
        if self._slips(WRONG) and not again:
            code = wrong(self.problem, self.draw)
        if self._slips(ERROR_AGAIN if again else ERROR, 0.0 if again else CLEAN_ERROR):
            code = broken(self.problem, self.draw)
        if self._slips(NO_FORMAT, 0.0 if self.tried else CLEAN_NO_FORMAT):
            self.tried = True
            return self.draw.choice([code, f"<python>{code}", f"{code}</python>", f"<code>{code}</code>"])
        return f"<python>{code}</python>"

    def _answer(self, number: str) -> str:
        if self._slips(MISCOPY_LONG if len(number) >= LONG else MISCOPY):
            number = number[:-1] if len(number) >= LONG else change_digit(number, self.draw)
        if self._slips(NO_FORMAT, 0.0 if self.tried else CLEAN_NO_FORMAT):
            self.tried = True
            return self.draw.choice([number, f"The answer is {number}.", f"boxed {number}"])
        return f"\\boxed{{{number}}}"

    def _guess(self) -> str:
        return str(self.draw.randrange(10 ** self.draw.randint(2, 5)))

    def _slips(self, share: float, clean: float = 0.0) -> bool:
        return self.draw.random() < (share if self.noise else clean)


def change_digit(text: str, draw: random.Random) -> str:
    """`text` with one of its digits changed."""
    at = draw.choice([i for i, c in enumerate(text) if c.isdigit()])
    return text[:at] + draw.choice("123456789".replace(text[at], "")) + text[at + 1 :]


def wrong(problem: Problem, draw: random.Random) -> str:
    """A program that runs and computes something else: another operation, another number, or a step left out."""
    lines = list(problem.lines)
    at = draw.randrange(len(lines))
    kind = draw.choice(["operation", "number", "step"])
    if kind == "step" and len(lines) > 1:
        del lines[max(at, 1)]
    elif kind == "operation":
        lines[at] = re.sub(r"//=|[-+*%]=|//|\*\*?|gcd|lcm", lambda m: SWAPS.get(m[0], "*"), lines[at], count=1)
    elif re.search(r"\d", lines[at]):
        lines[at] = change_digit(lines[at], draw)
    imports = [f"from math import {n}" for n in ("gcd", "lcm") if any(n in line for line in lines)]
    return "\n".join([*imports, *lines, "print(x)"])


def broken(problem: Problem, draw: random.Random) -> str:
    """A program that ends in an error, or that prints nothing."""
    code = problem.program
    faults = [
        code.replace("print(x)", "print(y)"),
        code.replace("print(x)", "print(x"),
        code.removesuffix("\nprint(x)"),
        re.sub(r"^x=", "y=", code, count=1, flags=re.M),
    ]
    if problem.imports:
        faults += ["\n".join([*problem.lines, "print(x)"])] * 3
    if "*" in problem.lines[0] and "**" not in problem.lines[0]:
        faults.append(code.replace("*", "x", 1))
    return draw.choice(faults)


@functools.cache
def _shipped() -> frozenset[str]:
    """The ids, which are content hashes, of all shipped tasks."""
    splits = mini_splits()
    return frozenset(t.id for tasks in (splits.weight, splits.harness, splits.test) for t in tasks)


def fresh(draw: random.Random, count: int) -> dict[str, Problem]:
    """New problems of shared families by task id, none of them shipped."""
    problems: dict[str, Problem] = {}
    while len(problems) < count:
        problem = generate(draw, "shared")
        key = task_id(content_key(problem.question))
        if key not in _shipped():
            problems[key] = problem
    return problems


def world(problems: dict[str, Problem]) -> MathCode:
    """The math domain over these problems, without the sandbox."""
    tasks = [Task(key, {"question": p.question}, str(p.answer)) for key, p in problems.items()]
    everything = TaskSet(tasks, "demonstrations")
    return MathCode(Splits(everything, everything, everything), lambda code, session: evaluate(code))


def play(env: HarnessEnv, task: str, expert: Expert) -> list[Message]:
    """One episode to its end, as a conversation; `env.episode` is its record."""
    messages, _ = env.reset(seed=0, options={"task": task})
    while True:
        said = expert(messages)
        conversation = [*messages, {"role": "assistant", "content": said}]
        messages, _, ended, cut, _ = env.step(said)
        if ended or cut:
            return conversation


def demos(seed: int, noise: bool) -> Iterator[list[Message]]:
    """Conversations without end, the same for the same arguments."""
    draw = random.Random(f"math demos {seed}")
    pool = harnesses(draw, HARNESSES)
    while True:
        problems = fresh(draw, BLOCK)
        domain = world(problems)
        envs = [HarnessEnv(domain, harness=h) for h in pool]
        for task, problem in problems.items():
            yield play(draw.choice(envs), task, Expert(problem, draw, noise and draw.random() < NOISY))
