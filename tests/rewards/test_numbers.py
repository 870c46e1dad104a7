"""Numbers in texts: the first one, a single one, one with units, and choices between numbers."""

from __future__ import annotations

from fractions import Fraction

import pytest

from purerl.rewards.numbers import compact, exact_number, first_number, has_alternatives, number_with_units


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("72", 72),
        ("72.", 72),
        ("-72", -72),
        ("\u221272", -72),
        ("-$72.50", Fraction(-145, 2)),
        ("$-72", -72),
        ("1,234,567.00", 1234567),
        (r"1{,}234", 1234),
        ("1\u202f234", 1234),
        ("12,34", None),
        ("1,2345", None),
        ("3/4 cup", Fraction(3, 4)),
        (r"\frac{-3}{4}", Fraction(-3, 4)),
        ("1/0", None),
        (r"6.5 \times 10^{3}", 6500),
        ("1e3", 1000),
        ("1e99999", None),
        ("1e5000", None),
        ("1e301", None),
        ("1e300", 10**300),
        ("9^{301}", None),
        ("1.5 \u00d7 10^3", 1500),
        (r"1.5 \times 10^{-3}", Fraction(15, 10**4)),
        ("10^3", 1000),
        ("0^{-1}", None),
        (r"$-\frac{1}{2}$", Fraction(-1, 2)),
        (r"5-\frac{1}{2}", 5),
        (r"1\frac{1}{2}", Fraction(3, 2)),
        (r"-1\,\frac{1}{2}", Fraction(-3, 2)),
        ("3 1/2 cups", Fraction(7, 2)),
        ("- 5.", -5),
        ("x = - 5", -5),
        ("6 - 5", 6),
        ("+5", 5),
        ("\u00a5500 or \u20b9500", 500),
        ("12, since x = 9 and y = 3", 12),
        ("12 because x = 9", 12),
        ("roughly, 12", 12),
        ("12 = x", 12),
        ("9" * 65, None),
        (".5", Fraction(1, 2)),
        ("10-5", 10),
        ("2 + 3 = 5 or so", 5),
        ("x1", None),
        ("none", None),
    ],
)
def test_first_number(text: str, number: Fraction | None) -> None:
    assert first_number(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (r"72\text{ apples}", 72),
        (r"45^\circ", 45),
        (r"50\%", 50),
        (r"\$1{,}234", 1234),
        (r"72\text{ cm}^2", 72),
        (r"72~\mathrm{cm}^{2}", 72),
        (r"\text{72}", 72),
        (r"\textbf{72 apples}", 72),
        (r"-\frac{3}{4}", Fraction(-3, 4)),
        (r"+\tfrac{3}{4}", Fraction(3, 4)),
        (r"1\frac34", Fraction(7, 4)),
        (r"\frac123", None),
        ("2^{8}", 256),
        ("-2^2", -4),
        ("5^{n}", None),
        ("9^{9^{9}}", None),
        ("2^{1000}", None),
        (r"2\frac{1}{3}", Fraction(7, 3)),
        ("1 2", None),
        ("72 cm", None),
        ("2x", None),
        ("1, 2", None),
        ("(1,2)", None),
        ("5 or 7", None),
        ("x = 5", None),
    ],
)
def test_exact_number(text: str, number: int | None) -> None:
    assert exact_number(text) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("72 km/h", 72),
        ("72 m^2", 72),
        ("72kg", 72),
        ("72 kg m^{2}", 72),
        ("9.8 N", Fraction(98, 10)),
        (r"\text{72cm}", 72),
        ("x = 72 apples", 72),
        (r"2\pi", None),
        ("2 pi", None),
        ("5x", None),
        ("5 xy", None),
        ("5 sqrt 2", None),
        (r"5\sqrt{2}", None),
        ("18 or 20", None),
        ("many", None),
    ],
)
def test_number_with_units(text: str, number: int | None) -> None:
    assert number_with_units(text) == number


@pytest.mark.parametrize(
    ("first", "second"), [(r"1\frac{1}{2}", "11/2"), ("1 2", "12"), ("1\n2", "12"), (r"\frac{1}{2}3", r"\frac{1}{23}")]
)
def test_compact_keeps_spaces_between_digits(first: str, second: str) -> None:
    assert compact(first) != compact(second)
    assert compact(f" ( {first} , x ) ") == f"({compact(first)},x)"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("18 or 20", True),
        ("18, or 20", True),
        ("$18 or $20.", True),
        ("18 apples or 20 apples", True),
        ("either 18 or 20", True),
        ("18 or maybe even 20", True),
        ("18 and/or 20", True),
        ("**18** or **20**", True),
        ("18", False),
        ("18 or so", False),
        ("18. Or 20?", False),
        ("18 dollars for 3 boxes", False),
        ("18, since 9 + 9 is 18 or 2 * 9", False),
        ("none or 20", False),
    ],
)
def test_has_alternatives(text: str, expected: bool) -> None:
    assert has_alternatives(text) == expected
