"""Which episodes are trained on, and on which of their tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_envs import Episode, Reply, UserError, Verdict
from whale_envs.episode import Call, Failure
from whale_train.rsft.rows import IGNORE, Row, fit, rows
from whale_train.rsft.select import select, summarise


def reply(prompt: list[int] | None, completion: list[int] | None, finish: str = "stop") -> Reply:
    return Reply("", finish, [], prompt, completion)  # type: ignore[arg-type]


def episode(*replies: Reply, task: str = "t", score: float = 1.0, at: int = 0, **fields: object) -> Episode:
    calls = [Call([{"role": "user", "content": ""}], r) for r in replies]
    return Episode(task, "d", "h", at, calls=calls, verdict=Verdict(score, ""), **fields)  # type: ignore[arg-type]


def printed(row: Row) -> str:
    """A row as a person reads it, trained tokens in brackets."""
    shown = zip(row.input_ids, row.labels, strict=True)
    return " ".join(f"[{token}]" if label != IGNORE else str(token) for token, label in shown)


def test_turns_that_go_on_share_a_row_with_labels_on_the_sampled_tokens_alone() -> None:
    # 1 opens a prompt, 2 ends a turn, 3 is the reply's head: all but 2 are the template's; 20.. and 40.. are sampled
    found = rows(
        episode(
            reply([1, 10, 2, 3], [20, 21, 2]),
            reply([1, 10, 2, 3, 20, 21, 2, 5, 30, 2, 3], [40, 2]),
            reply([1, 10, 2, 3, 20, 21, 2, 5, 30, 2, 3, 40, 2, 5, 31, 2, 3], [50, 51, 52, 2]),
        )
    )
    assert [printed(row) for row in found] == [
        "1 10 2 3 [20] [21] [2] 5 30 2 3 [40] [2] 5 31 2 3 [50] [51] [52] [2]",
    ]
    assert found[0].labels == [
        *[IGNORE] * 4, 20, 21, 2, *[IGNORE] * 4, 40, 2, *[IGNORE] * 4, 50, 51, 52, 2,
    ]  # fmt: skip
    assert found[0].trained == 9


def test_a_forced_end_of_turn_carries_no_label() -> None:
    # the first reply was stopped by a stop string: the template adds 2, which the model did not sample
    found = rows(episode(reply([1, 3], [20]), reply([1, 3, 20, 2, 3], [40, 2])))
    assert [printed(row) for row in found] == ["1 3 [20] 2 3 [40] [2]"]


def test_a_rewritten_history_makes_rows_of_its_own() -> None:
    found = rows(
        episode(
            reply([1, 10, 3], [20, 21, 2]),
            reply([1, 10, 3, 20, 99, 2, 3], [40, 2]),  # as long, one token differs
            reply([1, 10, 3, 20, 99, 2, 3, 40, 2, 3], [50, 2]),  # goes on from the second call
            reply([1, 3], [60, 2]),  # a fresh context
            reply([1, 10, 3, 20, 21, 2, 3], [70, 2]),  # would go on from the first call, not from the previous one
        )
    )
    assert [printed(row) for row in found] == [
        "1 10 3 [20] [21] [2]",
        "1 10 3 20 99 2 3 [40] [2] 3 [50] [2]",
        "1 3 [60] [2]",
        "1 10 3 20 21 2 3 [70] [2]",
    ]


def test_same_text_in_other_tokens_is_not_the_same() -> None:
    # [20, 21] and [22] may decode to one string; only tokens count
    found = rows(episode(reply([1], [20, 21]), reply([1, 22, 2, 3], [40])))
    assert [printed(row) for row in found] == ["1 [20] [21]", "1 22 2 3 [40]"]


@given(
    st.lists(
        st.tuples(
            st.booleans(),
            st.lists(st.integers(0, 3), min_size=1, max_size=4),
            st.lists(st.integers(0, 3), max_size=4),
        ),
        max_size=6,
    )
)
def test_every_sampled_token_is_trained_on_once_in_its_own_context(
    turns: list[tuple[bool, list[int], list[int]]],
) -> None:
    replies: list[Reply] = []
    for goes_on, new, completion in turns:
        past = [*(replies[-1].prompt_ids or []), *(replies[-1].completion_ids or [])] if replies and goes_on else []
        replies.append(reply([*past, *new], completion))
    found = rows(episode(*replies))
    sampled = [token for r in replies for token in r.completion_ids or []]
    assert [label for row in found for label in row.labels if label != IGNORE] == sampled
    for row in found:
        assert len(row.labels) == len(row.input_ids)
        assert row.trained > 0
        assert all(label in (IGNORE, token) for label, token in zip(row.labels, row.input_ids, strict=True))
    for r in replies:
        seen = [*(r.prompt_ids or []), *(r.completion_ids or [])]
        assert not r.completion_ids or any(row.input_ids[: len(seen)] == seen for row in found)


def test_replies_without_token_ids_are_refused_with_the_reason() -> None:
    for bad in (reply(None, None), reply([1], None), reply([], [2])):
        with pytest.raises(UserError, match="call 2 of the episode on task t has no token ids"):
            rows(episode(reply([1], [2]), bad))


def test_a_row_over_the_limit_is_dropped_and_counted() -> None:
    made = [Row([1] * n, [1] * n) for n in (3, 5, 4)]
    assert fit(made, 4) == ([made[0], made[2]], 1)
    assert fit(made, 5) == (made, 0)


def test_only_whole_accepted_episodes_are_kept_in_order() -> None:
    good, half = episode(task="a"), episode(task="b", score=0.5)
    cut = episode(reply([1], [2], "length"), reply([1], [2]), task="c")
    failed = episode(task="d", failure=Failure("tool", "x"))
    late = episode(task="e", score=0.51)
    given_ = [late, half, good, cut, failed]
    assert select(given_) == [late, good]
    assert given_ == [late, half, good, cut, failed]


def test_the_summary_counts_groups_by_task() -> None:
    episodes = [
        *(episode(task="right", behaviours={"used": True}) for _ in range(2)),
        episode(task="mixed"),
        episode(task="mixed", score=0.0, behaviours={"used": False}),
        *(episode(task="wrong", score=0.0) for _ in range(2)),
        episode(reply([1], [2], "length"), task="cut"),
        episode(task="cut", score=0.0, failure=Failure("harness", "x")),
    ]
    figures = summarise(episodes)
    assert (figures["episodes"], figures["questions"]) == (8, 2)
    assert figures["reward"] == pytest.approx(4 / 8)
    assert figures["accepted"] == pytest.approx(3 / 8)
    assert (figures["groups/all_right"], figures["groups/all_wrong"]) == (0.25, 0.5)
    assert figures["truncated"] == pytest.approx(1 / 8)
    assert (figures["failures/harness"], figures["failures/model"]) == (1, 0)
    assert figures["behaviours/used"] == pytest.approx(2 / 3)
    assert (figures["tokens/prompt"], figures["tokens/sampled"]) == (1, 1)


def ids(episodes: list[Episode]) -> list[int]:
    return [e.seed for e in episodes]


def test_groups_that_are_all_correct_can_be_left_out() -> None:
    right = [episode(task="right", at=i) for i in range(2)]
    mixed = [episode(task="mixed", at=2), episode(task="mixed", score=0.0, at=3), episode(task="mixed", at=4)]
    cut = [episode(task="cut", at=5), episode(reply([1], [2], "length"), task="cut", at=6)]
    assert ids(select([*right, *mixed, *cut])) == [0, 1, 2, 4, 5]
    assert ids(select([*right, *mixed, *cut], drop_all_correct=True)) == [2, 4, 5]


def test_at_most_so_many_are_kept_of_a_question_the_first_ones() -> None:
    given_ = [
        episode(task=t, score=s, at=i) for i, (t, s) in enumerate([("a", 0), ("a", 1), ("b", 1), *[("a", 1)] * 3])
    ]
    assert ids(select(given_, max_per_question=2)) == [1, 2, 3]
    assert ids(select(given_, max_per_question=9)) == ids(select(given_)) == [1, 2, 3, 4, 5]


def test_of_episodes_of_a_question_with_the_same_tokens_the_first_is_kept() -> None:
    def said(at: int, *completion: int, task: str = "a", prompt: int = 1, score: float = 1.0) -> Episode:
        return episode(reply([prompt], list(completion)), task=task, at=at, score=score)

    given_ = [
        said(0, 5, score=0.0),  # not accepted, so the next is the first
        said(1, 5),
        said(2, 5),
        said(3, 5, 6),
        said(4, 5, task="b"),
        said(5, 5, prompt=2),
        episode(reply([1], [5]), reply([1, 5], [6]), task="a", at=6),
        episode(reply([1], [5]), reply([1, 5], [6]), task="a", at=7),
    ]
    assert ids(select(given_, drop_duplicates=True)) == [1, 3, 4, 5, 6]
    assert ids(select(given_, drop_duplicates=True, max_per_question=2)) == [1, 3, 4]
