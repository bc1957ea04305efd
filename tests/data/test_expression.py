from __future__ import annotations

import time
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acpo.data.expression import evaluate, names
from acpo.errors import UserError

COLUMNS = {
    "x": np.array([0, 1, 2, 3]),
    "speed": np.array([0.5, -1.5, 2.5, 4.0], dtype=np.float32),
    "on": np.array([True, False, True, True]),
    "T in": np.array([20.0, 21.0, 22.0, 23.0]),
    "µ": np.array([1.0, 2.0, 3.0, 4.0]),
    "mode": np.array(["a", "b", "a", "b"]),
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x", [0, 1, 2, 3]),
        ("2 * x - 1", [-1, 1, 3, 5]),
        ("x / 2 + x ** 2 - x % 2", [0, 0.5, 5, 9.5]),
        ("-x + +1", [1, 0, -1, -2]),
        ("x > 1", [0, 0, 1, 1]),
        ("0 < x <= 2", [0, 1, 1, 0]),
        ("(x > 0) & (x < 3)", [0, 1, 1, 0]),
        ("(x == 0) | (x == 3)", [1, 0, 0, 1]),
        ("x == 0 or not on", [1, 1, 0, 0]),
        ("x > 0 and on", [0, 0, 1, 1]),
        ("~on", [0, 1, 0, 0]),
        ("on + on", [2, 0, 2, 2]),
        ("abs(speed)", [0.5, 1.5, 2.5, 4]),
        ("min(x, 2, speed)", [0, -1.5, 2, 2]),
        ("max(x, 1)", [1, 1, 2, 3]),
        ("clip(speed, -1, 3)", [0.5, -1, 2.5, 3]),
        ("where(on, x, -x)", [0, -1, 2, 3]),
        ("sqrt(x**2) + exp(0*x) + log(exp(x))", [1, 3, 5, 7]),
        ("sin(0*x) + cos(0*x) + tanh(0*x)", [1, 1, 1, 1]),
        ("`T in` - 20", [0, 1, 2, 3]),
        ("`x`*`T in`", [0, 21, 44, 69]),
        ("µ + 1", [2, 3, 4, 5]),
        ("3", [3, 3, 3, 3]),
        (" x ", [0, 1, 2, 3]),
    ],
)
def test_an_expression_is_computed_row_by_row_in_float64(text: str, expected: list[float]) -> None:
    found = evaluate(text, COLUMNS)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_what_is_computed_can_be_written_to_without_changing_the_column() -> None:
    evaluate("x", COLUMNS)[0] = 9
    assert COLUMNS["x"][0] == 0


def test_division_by_zero_and_overflow_give_what_is_not_finite_without_a_warning() -> None:
    found = evaluate("1/x", COLUMNS)
    assert np.isinf(found[0])
    assert np.isinf(evaluate("10**400", COLUMNS)).all()


def test_an_absurd_power_takes_no_time() -> None:
    begun = time.perf_counter()
    assert np.isinf(evaluate("9**9**9**9**9", COLUMNS)).all()
    assert time.perf_counter() - begun < 1


def test_the_names_are_those_of_columns_and_not_of_functions() -> None:
    assert names("where(on, abs(speed), `T in`) + µ*2") == {"on", "speed", "T in", "µ"}
    assert names("1 + 1") == set()


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"no column 'sped'; did you mean 'speed'\? .*'T in'"):
        evaluate("sped + 1", COLUMNS)


@pytest.mark.parametrize(
    "text",
    [
        "x.real",
        "x[0]",
        "'text'",
        "f'{x}'",
        "__import__('os').system('true')",
        "open(x)",
        "abs.__class__",
        "(lambda: 1)()",
        "[x, x]",
        "{x}",
        "x if on else 1",
        "[y for y in x]",
        "x // 2",
        "x @ x",
        "x in x",
        "x is x",
        "1j",
        "None",
        "...",
        "abs(x=x)",
        "max(*x)",
        "1" + "0" * 400,
    ],
)
def test_anything_but_arithmetic_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="It may hold numbers, columns"):
        evaluate(text, {**COLUMNS, "y": COLUMNS["x"]})


@pytest.mark.parametrize("text", ["", "x +", "x y", "`x", "x = 1", "x\ny", "x\0", "(" * 300 + "x"])
def test_what_cannot_be_parsed_is_refused_with_the_reason(text: str) -> None:
    for function in (lambda: evaluate(text, COLUMNS), lambda: names(text)):
        with pytest.raises(UserError, match="is no expression"):
            function()


@pytest.mark.parametrize("text", ["-" * 5000 + "x", "+".join("x" * 4000), "x" * 20_000])
def test_an_expression_too_long_to_walk_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="too long"):
        evaluate(text, COLUMNS)


def test_the_number_of_arguments_is_checked() -> None:
    with pytest.raises(UserError, match="clip takes 3 arguments, not 1"):
        evaluate("clip(x)", COLUMNS)
    with pytest.raises(UserError, match="min takes two or more arguments, not 1"):
        evaluate("min(x)", COLUMNS)


def test_a_comparison_without_its_parentheses_is_refused_rather_than_misread() -> None:
    with pytest.raises(UserError, match="put each comparison in parentheses"):
        evaluate("x > 0 & speed < 3", COLUMNS)


def test_a_column_of_text_is_refused() -> None:
    with pytest.raises(UserError, match="the column 'mode' holds no numbers"):
        evaluate("mode + 1", COLUMNS)


def test_a_quoted_name_is_quoted_in_messages_too() -> None:
    with pytest.raises(UserError, match=r"'`T in`\.x' is not allowed"):
        evaluate("`T in`.x", COLUMNS)


@given(st.text(alphabet="xyon.()[]'`*-+/&|~<>=,:0123456789 \n\"\\#@lambdeif_", max_size=40))
def test_any_text_gives_numbers_or_a_user_error(text: str) -> None:
    try:
        found = evaluate(text, COLUMNS)
    except UserError:
        return
    assert found.shape == (4,)


@pytest.mark.parametrize("text", ["1if x else", "1and x +", "x + 1or 2 +"])
def test_pythons_own_warnings_are_not_shown(text: str) -> None:
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        with pytest.raises(UserError, match="is no expression"):
            evaluate(text, {"x": np.zeros(1)})
    assert shown == []
