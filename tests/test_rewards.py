"""Verifiers as TRL's reward functions: strings and chats alike, golds by column, and a real GRPO step."""

import json
from pathlib import Path

import chess
import pytest
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st
from trl import GRPOConfig, GRPOTrainer

from whale_envs import HarnessEnv, UserError, load_domain
from whale_envs.verifiers import (
    chess_line_reward,
    exact_match_reward,
    f1_reward,
    integer_reward,
    math_equivalent_reward,
    sub_em_reward,
)
from whale_train.policies.load import load_policy

#: What TRL passes besides a dataset's columns.
BESIDES = {"completion_ids": [[1], [2]], "trainer_state": None, "log_extra": print, "log_metric": print}


def as_chat(text):
    """A completion as a conversation in which the answer comes after a tool's result."""
    return [
        {"role": "assistant", "content": None, "tool_calls": [{"name": "search"}]},
        {"role": "tool", "content": "<answer>a tool's</answer> \\boxed{99} <move>a1a1</move>"},
        {"role": "assistant", "content": text},
    ]


def as_parts(text):
    return [{"role": "assistant", "content": [{"type": "text", "text": text[:3]}, {"type": "text", "text": text[3:]}]}]


def score(reward, texts, **columns):
    """The rewards, the same for each form of a completion."""
    prompts = [f"Prompt {n}" for n in range(len(texts))]
    plain = reward(prompts=prompts, completions=texts, **columns, **BESIDES)
    assert all(type(value) is float for value in plain)
    for form in (as_chat, as_parts):
        chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
        assert reward(prompts=chats, completions=[form(text) for text in texts], **columns, **BESIDES) == plain
    return plain


ANSWERS = ["I say <answer> the Paris</answer>", "<answer>in Paris</answer>", "Paris", "<answer>*</answer>", "",
           "<answer>Rome</answer> no: <answer>Paris!</answer>", "<answer>Paris</answer> or <answer>Rome</answer>",
           "<answer>Paris"]  # fmt: skip


@pytest.mark.parametrize("name", ["gold", "golds", "golden_answers", "answers", "answer"])
@pytest.mark.parametrize("gold", ["Paris", ["Lutetia", "Paris"], ("*", "Paris")])
def test_short_answers(name, gold):
    golds = {name: [gold] * len(ANSWERS)}
    assert score(exact_match_reward, ANSWERS, **golds) == [1, 0, 0, 0, 0, 1, 0, 0]
    assert score(sub_em_reward, ANSWERS, **golds) == [1, 1, 0, 0, 0, 1, 0, 0]
    assert score(f1_reward, ANSWERS, **golds) == pytest.approx([1, 2 / 3, 0, 0, 0, 1, 0, 0])


def test_no_answer_begins_in_one_message_and_ends_in_another():
    def split(start, end):
        said = [("assistant", start), ("tool", "found"), ("assistant", end)]
        return [{"role": role, "content": text} for role, text in said]

    chats = [
        split("<answer>Paris", "</answer>"),
        split("<answer>Paris</answer>", "so it is"),
        split("<answer>Rome</answer>", "<answer>Paris</answer>"),
        split("<answer>Paris</answer>", "<answer>"),
    ]
    assert exact_match_reward(prompts=[""] * 4, completions=chats, gold=["Paris"] * 4) == [0, 1, 1, 1]
    chats = [split(r"\boxed{25", "}"), split(r"\boxed{25}", "that"), split(r"\boxed{7}", r"\boxed{25}")]
    for reward in (integer_reward, math_equivalent_reward):
        assert reward(prompts=[""] * 3, completions=chats, gold=["25"] * 3) == [0, 1, 1]


@pytest.mark.parametrize("gold", ["25", 25, "025", "So $5^2$ is #### 25", r"We get $\boxed{25}$."])
@pytest.mark.parametrize("name", ["gold", "answer", "ground_truth", "solution"])
def test_boxed_integers(name, gold):
    texts = [r"\boxed{25}", r"\boxed{7} so \boxed{025.0}", "25", r"\boxed{5^2}", r"\boxed{25", ""]
    for reward, wanted in ((integer_reward, [1, 1, 0, 0, 0, 0]), (math_equivalent_reward, [1, 1, 0, 1, 0, 0])):
        assert score(reward, texts, **{name: [gold] * len(texts)}) == wanted


def test_boxed_expressions():
    texts = [r"\boxed{0.5}", r"\boxed{\frac{2}{4}}", r"\boxed{1/3}", "0.5"]
    assert score(math_equivalent_reward, texts, answer=[r"\frac12"] * 4) == [1, 1, 0, 0]


def test_chess_lines_in_our_columns_and_in_lichess():
    start = chess.STARTING_FEN
    texts = ["<move>e4</move>", "<move>e2e4 Nf3</move>", "<move>d4 Nf3</move>", "e4 Nf3", "<move>e4 </move> <move>d4"]
    gold = {"line": ["e2e4", "e7e5", "g1f3"], "mate_in": None}
    assert score(chess_line_reward, texts, fen=[start] * 5, gold=[gold] * 5) == [0, 1, 0, 0, 0]
    before = "rnbqkbnr/pppppppp/8/8/8/N7/PPPPPPPP/R1BQKBNR b KQkq - 1 1"
    columns = {"FEN": [before] * 3, "Moves": ["g8f6 e2e4 e7e5 g1f3"] * 3, "Rating": [1500] * 3}
    assert score(chess_line_reward, texts[:3], **columns) == [0, 1, 0]


def test_a_chess_line_may_be_played_over_several_turns():
    turns = [
        {"role": "assistant", "content": "<move>d4</move> no, <move>e4</move>"},
        {"role": "user", "content": "Black plays e5. <move>a3</move>"},
        {"role": "assistant", "content": "<move>Nf3</move>"},
    ]
    columns = {"fen": [chess.STARTING_FEN] * 2, "gold": [{"line": ["e2e4", "e7e5", "g1f3"]}] * 2}
    assert chess_line_reward(["", ""], [turns, turns[:2]], **columns) == [1, 0]


@given(st.text(max_size=40), st.sampled_from([exact_match_reward, f1_reward, integer_reward]))
def test_any_completion_gets_a_reward(text, reward):
    forms = [text, as_chat(text), as_parts(text), [], [{"role": "assistant", "content": ""}]]
    assert all(0 <= value <= 1 for value in reward([""] * 5, forms, answer=["12345"] * 5))


@pytest.mark.parametrize(
    "completion",
    [None, 3, b"x", ["x"], [None], [{}], {"role": "assistant", "content": "x"}]
    + [[{"role": "assistant", "content": content}] for content in (3, ["x"], {"text": "x"})],
)
def test_what_is_no_completion_is_one_line(completion):
    columns = {"fen": [chess.STARTING_FEN], "gold": [{"line": ["e2e4"]}]}
    for reward, golds in (
        (exact_match_reward, {"gold": ["1"]}),
        (integer_reward, {"gold": ["1"]}),
        (chess_line_reward, columns),
    ):
        with pytest.raises(UserError, match="expected a string or a list of"):
            reward([""], [completion], **golds)


@pytest.mark.parametrize(
    "reward, columns, said",
    [
        (exact_match_reward, {"label": ["x", "y"]}, "no column of golds.*has label"),
        (exact_match_reward, {}, "no column of golds.*has none"),
        (f1_reward, {"answers": ["x", 3]}, "row 1 of column 'answers' holds 3"),
        (sub_em_reward, {"answer": ["x", ["y", None]]}, "row 1 of column 'answer'"),
        (integer_reward, {"answer": ["1", "1/2"]}, "row 1 of column 'answer': gold '1/2' is no integer"),
        (integer_reward, {"answer": ["1", None]}, "row 1 of column 'answer'"),
        (math_equivalent_reward, {"answer": ["1", ""]}, "row 1 of column 'answer': the gold is empty"),
        (chess_line_reward, {"fen": ["x"]}, "columns fen and gold, or FEN and Moves; the dataset has fen"),
        (chess_line_reward, {"fen": [chess.STARTING_FEN] * 2, "gold": [{"line": ["e2e4"]}, {}]}, "row 1 is no puzzle"),
        (chess_line_reward, {"FEN": ["nonsense"] * 2, "Moves": ["e2e4 e7e5"] * 2}, "row 0 is no puzzle"),
        (chess_line_reward, {"FEN": [chess.STARTING_FEN] * 2, "Moves": ["e2e5 e7e5"] * 2}, "row 0 is no puzzle"),
        (
            chess_line_reward,
            {"FEN": [None] * 2, "Moves": ["e2e4 e7e5"] * 2},
            "row 0 is no puzzle: .* strings, not None",
        ),
        (chess_line_reward, {"FEN": [chess.STARTING_FEN] * 2, "Moves": [["e2e4", "e7e5"]] * 2}, "row 0 is no puzzle"),
        (chess_line_reward, {"fen": [None] * 2, "gold": [{"line": ["e2e4"]}] * 2}, "row 0 is no puzzle"),
        (chess_line_reward, {"fen": [chess.STARTING_FEN], "gold": [{"line": ["e2e4"]}]}, "1 golds for 2 completions"),
        (f1_reward, {"answers": ["x"]}, "1 golds for 2 completions: expected one a completion"),
        (integer_reward, {"answer": ["1", "2", "3"]}, "3 golds for 2 completions"),
        (exact_match_reward, {"answer": None}, "column 'answer' is None: expected a list"),
    ],
)
def test_a_dataset_that_cannot_be_used_is_one_line_that_names_the_place(reward, columns, said):
    with pytest.raises(UserError, match=said) as error:
        reward(prompts=["", ""], completions=["<move>e4</move>", "<move>e4</move>"], **columns)
    assert "\n" not in str(error.value)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("chat", [True, False])
def test_a_grpo_step_gets_the_environments_own_scores(tmp_path: Path, chat: bool) -> None:
    """TRL's trainer, the bundled chess model and one-move puzzles: what the reward function says of each completion is
    what the environment says of it."""
    domain, policy = load_domain("chess"), load_policy("tiny", "chess")
    tasks = [task for task in domain.splits.weight if task.gold.mate_in == 1][:8]
    env, rows = HarnessEnv(domain, harness="h0"), []
    for task in tasks:
        messages, _ = env.reset(seed=0, options={"task": task.id})
        prompt = list(messages) if chat else policy.tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=True
        )  # fmt: skip
        gold = {"line": task.gold.line, "mate_in": task.gold.mate_in}
        rows.append({"prompt": prompt, "fen": task.shown["fen"], "gold": gold, "task": task.id})
    seen = []

    def reward(prompts, completions, **columns):
        scores = chess_line_reward(prompts, completions, **columns)
        seen.extend(zip(columns["task"], completions, scores, strict=True))
        return scores

    trainer = GRPOTrainer(
        policy.model,
        reward_funcs=[reward, exact_match_reward_of_moves],
        train_dataset=Dataset.from_list(rows),
        processing_class=policy.tokenizer,
        args=GRPOConfig(
            output_dir=str(tmp_path), max_steps=1, per_device_train_batch_size=32, num_generations=4,
            max_completion_length=10, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True,
            logging_steps=1, seed=1,
        ),
    )  # fmt: skip
    trainer.train()
    assert len(seen) == 32 and 0 < sum(scored for *_, scored in seen) < 32
    for task, completion, scored in seen:
        env.reset(seed=0, options={"task": task})
        text = completion if isinstance(completion, str) else completion[-1]["content"]
        env.step(text)
        assert scored == (env.episode.score if env.done else 0.0), json.dumps([task, text])
    mean = sum(scored for *_, scored in seen) / 32
    assert trainer.state.log_history[0]["rewards/reward/mean"] == pytest.approx(mean)
    assert "rewards/exact_match_reward_of_moves/mean" in trainer.state.log_history[0]


def exact_match_reward_of_moves(prompts, completions, **columns):
    """A second function beside the first, as people weigh several."""
    return exact_match_reward(prompts, completions, gold=[gold["line"] for gold in columns["gold"]])
