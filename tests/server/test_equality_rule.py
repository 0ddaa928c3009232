"""The flip rule of `profiling/equality.py`, on made-up answers."""

from __future__ import annotations

from math import inf

import pytest

from sglang_dspark.profiling.equality import (
    NEAR_TIE,
    TOKENS_PER_EXCUSE,
    Comparison,
    Flip,
    compare,
    first_difference,
)


def never(prompt: int, position: int) -> float:
    raise AssertionError("there is no flip to ask about")


@pytest.mark.parametrize(
    ("expected", "got", "position"),
    [
        ([1, 2, 3], [1, 2, 3], None),
        ([], [], None),
        ([1, 2, 3], [9, 2, 3], 0),
        ([1, 2, 3], [1, 2, 9], 2),
        ([1, 2, 3], [1, 2], 2),
        ([1, 2], [1, 2, 3], 2),
        ([1, 2], [9], 0),
    ],
)
def test_first_difference(expected: list[int], got: list[int], position: int | None) -> None:
    assert first_difference(expected, got) == position


def test_equal_answers_never_ask_for_a_gap() -> None:
    result = compare([[1, 2], [3]], [(1, 2), (3,)], never)
    assert result == Comparison(prompts=2, tokens=3)
    assert result.identical


def test_comparison_of_a_prompt_ends_at_its_first_difference() -> None:
    asked = []

    def gap_at(prompt: int, position: int) -> float:
        asked.append((prompt, position))
        return NEAR_TIE / 2

    result = compare([[1, 2, 3, 4], [5, 6]], [[1, 9, 8, 7], [5, 6]], gap_at)
    assert asked == [(0, 1)]
    assert result.flips == (Flip(0, 1, expected=2, got=9, gap=NEAR_TIE / 2),)
    assert result.tokens == 2 + 2
    assert result.identical and result.excused_flips == 1


@pytest.mark.parametrize(("gap", "identical"), [(0.0, True), (9.9e-6, True), (1e-5, False)])
def test_a_flip_is_excused_below_the_near_tie_only(gap: float, identical: bool) -> None:
    result = compare([[1, 2]], [[1, 3]], lambda *_: gap)
    assert result.identical is identical
    assert ("NOT excused" not in str(result)) is identical


@pytest.mark.parametrize(("expected", "got"), [([1, 2], [1]), ([1], [1, 2])])
def test_an_answer_that_just_ends_is_never_excused(expected: list[int], got: list[int]) -> None:
    result = compare([expected], [got], never)
    assert not result.identical
    assert result.flips[0].gap == inf


@pytest.mark.parametrize(
    ("tokens", "flips", "identical"),
    [
        (100, 1, True),
        (100, 2, False),
        (2 * TOKENS_PER_EXCUSE - 1, 2, False),
        (2 * TOKENS_PER_EXCUSE, 2, True),
    ],
)
def test_more_than_one_excused_flip_in_ten_thousand_tokens_fails(
    tokens: int, flips: int, identical: bool
) -> None:
    excused = Flip(0, 0, expected=1, got=2, gap=0.0)
    assert Comparison(1, tokens, (excused,) * flips).identical is identical


def test_results_add_up() -> None:
    excused = Flip(0, 3, expected=1, got=2, gap=0.0)
    total = Comparison(2, 50, (excused,)) + Comparison(3, 70)
    assert total == Comparison(5, 120, (excused,))


def test_as_many_answers_as_prompts() -> None:
    with pytest.raises(ValueError, match="argument"):
        compare([[1]], [], never)
