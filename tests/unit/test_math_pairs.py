r"""Which answers equal which references: a table, with the verdict that each pair should have.

Each line is (answer, reference, verdict). What our rules leave open is
math-verify's to say.
"""

from __future__ import annotations

import pytest

from ajet.task_judge.math_equality import equal

Y, N = True, False

PAIRS: dict[str, list[tuple[str, str, bool]]] = {
    "an expression is no value where a number is asked": [
        ("12 + 30", "42", N), ("12+30", "42", N), ("10-5", "5", N), ("6 * 7", "42", N), (r"6 \times 7", "42", N),
        (r"6 \cdot 7", "42", N), ("6×7", "42", N), ("84/2", "42", N), (r"\frac{84}{2}", "42", N), ("84 ÷ 2", "42", N),
        ("2^5", "32", N), ("2^{10}", "1024", N), (r"\sqrt{16}", "4", N), ("√16", "4", N), ("5!", "120", N),
        (r"\binom{5}{2}", "10", N), ("|-5|", "5", N), ("(12 + 30)", "42", N), ("40 + 2 = 42", "42", Y),
        ("12 + 30 = 43", "42", N), ("42 = 12 + 30", "42", N), ("1/2 + 1/2", "1", N), ("0.25 * 2", "1/2", N),
        (r"3 \times 10^2", "300", N), ("10^2", "100", N), ("2/4", "0.5", N), ("4/1", "4", N), (r"\log_2 8", "3", N),
        ("-(-5)", "5", Y), ("2(21)", "42", N), ("7 mod 4", "3", N), ("50 + 50%", "75", N), ("9**9**9", "5", N),
    ],
    "values of several names": [
        ("2,3", "x=2,y=3", Y), ("3,2", "x=2,y=3", N), ("2 and 3", "x=2 and y=3", Y), ("3 and 2", "x=2 and y=3", N),
        ("(2,3)", "x=2,y=3", Y), ("(3,2)", "x=2,y=3", N), ("y=3,x=2", "x=2,y=3", Y), ("x=3,y=2", "x=2,y=3", N),
        ("3,2", "x=2,x=3", Y), ("3 or 2", "x=2 or x=3", Y),
    ],
    "integers and decimals": [
        ("42", "42", Y), ("42", "43", N), ("42.0", "42", Y), ("42.", "42", Y), ("+7", "7", Y), ("007", "7", Y),
        (".5", "0.5", Y), ("0.50", "0.5", Y), ("0.5", "0.05", N), ("3.14", "3.1", N), ("3.14159", "3.14", N),
        ("1.0000001", "1", N), ("(42)", "42", Y), ("{42}", "42", Y), ("[42]", "42", Y), ("$42$", "42", Y),
        (r"\(42\)", "42", Y), (r"\[42\]", "42", Y), ("**42**", "42", Y), ("*42*", "42", Y), ("`42`", "42", Y),
        ('"42"', "42", Y), (r"\boxed{42}", "42", Y), (r"\text{42}", "42", Y), (r"\mathbf{42}", "42", Y),
        ("", "42", N), ("42", "", N), (" ", "42", N), ("4 2", "42", N), ("nan", "1", N), ("inf", "1", N),
    ],
    "negative numbers": [
        ("-3", "-3", Y), ("-3", "3", N), ("3", "-3", N), ("−3", "-3", Y), ("–3", "-3", Y), ("- 3", "-3", Y),
        ("(-3)", "-3", Y), ("-(3)", "-3", Y), ("-0.5", r"-\frac{1}{2}", Y), (r"\frac{-1}{2}", r"-\frac12", Y),
        (r"-\frac{1}{2}", "-1/2", Y), ("(-1)/2", "-1/2", Y), ("-1/2", "1/2", N), ("-0", "0", Y), ("-$5", "-5", Y),
    ],
    "powers of ten": [
        ("1e-05", "0.00001", Y), ("1e3", "1000", Y), ("1E3", "1000", Y), ("3.0e8", "300000000", Y),
        ("3.0e8", r"3 \times 10^8", Y), ("3×10⁸", "3e8", Y), (r"3 \times 10^{8}", "300,000,000", Y),
        ("3*10^8", "3e8", Y), (r"3 \cdot 10^{8}", "3e8", Y), (r"1.5 \times 10^{-4}", "0.00015", Y),
        ("1e3", "100", N), ("1e-5", "1e5", N), ("2e", "2", N), ("1.0", "1e0", Y), ("-2.5e-3", "-0.0025", Y),
        (r"3 \times 10^8", r"3 \times 10^7", N), ("3 x 10^8", "3e8", Y),
    ],
    "thousands": [
        ("1,234", "1234", Y), ("1,234,567", "1234567", Y), ("1,234.5", "1234.5", Y), ("1 234", "1234", Y),
        ("1\u2009234", "1234", Y), ("1\u202f234", "1234", Y), ("1\u00a0234", "1234", Y), (r"5\,000", "5000", Y),
        (r"5\ 000", "5000", Y), ("5{,}000", "5000", Y), (r"5,\!000", "5000", Y), ("1_000", "1000", Y),
        ("1'000", "1000", Y), ("1.234.567", "1234567", Y), ("1.234", "1234", N), ("1,23", "123", N),
        ("1,23", "1.23", N), ("1,2345", "12345", N), ("12,34", "1234", N), ("1 23", "123", N), ("1,000", "1", N),
        ("1,234 567", "1234567", N),
    ],
    "fractions and mixed numbers": [
        ("1/2", "0.5", Y), ("0.5", "1/2", Y), (r"\frac{1}{2}", "0.5", Y), (r"\frac12", "1/2", Y),
        (r"\dfrac{1}{2}", "1/2", Y), (r"\tfrac{1}{2}", "0.5", Y), ("1 / 2", "1/2", Y), ("2/4", "1/2", Y),
        ("½", "0.5", Y), ("½", "1/2", Y), ("¾", "0.75", Y), ("⅓", "1/3", Y), ("1⁄2", "0.5", Y), ("1½", "1.5", Y),
        ("1 1/2", "1.5", Y), ("1 1/2", "3/2", Y), (r"1\frac{1}{2}", "3/2", Y), (r"1 \frac12", "1.5", Y),
        ("-1 1/2", "-1.5", Y), ("2 3/4", "2.75", Y), ("1 1/2", "0.5", N), ("11/2", "1 1/2", N), ("1 3/2", "2.5", N),
        ("0.33", "1/3", N), ("0.3333333", "1/3", N), (r"0.\overline{3}", "1/3", Y), (r"0.1\overline{6}", "1/6", Y),
        ("0.(3)", "1/3", Y), ("1/0", "1", N), ("0/5", "0", N), (r"\frac{1}{3}", "0.5", N), ("3/2", "2/3", N),
        (r"\frac{0.5}{1}", "0.5", N), ("7/8", r"\frac{7}{8}", Y), (r"\frac{", "1", N),
    ],
    "percent": [
        ("50%", "50%", Y), (r"50\%", "50%", Y), ("50 %", "50%", Y), ("50 percent", "50%", Y), ("50%", "50", N),
        ("50", "50%", N), ("0.5", "50%", N), ("50%", "0.5", N), ("12.5%", r"12.5\%", Y), ("1/2%", "0.5%", Y),
        ("25%", "1/4", N), ("100%", "1", N),
    ],
    "units": [
        ("5 km", "5 m", N), ("5 kg", "5 g", N), ("5 hours", "5 minutes", N), ("5 km", "5 km", Y), ("5 km", "5000 m", Y),
        ("5km", "5 kilometers", Y), ("5", "5 km", Y), ("5 km", "5", Y), ("60 minutes", "1 hour", Y),
        ("1.5 h", "90 min", Y), ("90 min", "1 h", N), (r"72 \text{ dollars}", "72", Y), ("$72", "72 dollars", Y),
        (r"\$72", "72", Y), ("$72.00", "72", Y), ("€72", "$72", N), ("72 euros", "72 dollars", N), ("72 USD", "$72", Y),
        (r"5 \text{ cm}", "5 cm", Y), (r"5\,\mathrm{cm}", "5 cm", Y), (r"5 \text{ cm}^2", "5 cm^2", Y),
        ("5 cm²", "5 cm^2", Y), ("5 cm^2", "5 cm", N), ("5 cm^2", "5 cm^3", N), ("5 m/s", "5 m/s", Y),
        ("5 m/s", "5 km/h", N), ("5 meters per second", "5 m/s", Y), ("5 apples", "5", Y), ("5 apples", "5 oranges", N),
        ("5 apples", "5 apples", Y), ("1 apple", "1 apples", Y), ("6 apples", "5 apples", N),
        ("5 square units", "5", Y),
        ("100 cents", "1 dollar", Y), ("5x", "5", N), ("5 x", "5", N), ("5i", "5", N), ("5 or so", "5", N),
        ("2 ft", "24 inches", Y), ("20 mph", "20", Y), (r"$\frac{1}{2}$ hours", "0.5", Y), ("$5 and $6", "5", N),
    ],
    "degrees": [
        (r"90^\circ", "90", Y), (r"90^{\circ}", "90", Y), ("90°", "90", Y), ("90 degrees", "90°", Y),
        (r"90\degree", "90 degrees", Y), ("90°", "90 radians", N), ("91°", "90°", N), ("20°C", "20°F", N),
        ("20 °C", "20°C", Y), ("20°C", "20", Y),
    ],
    "words": [
        ("cat", "act", N), ("tea", "eat", N), ("no", "on", N), ("AB", "BA", N), ("New York", "york New", N),
        ("New York", "new york", Y), ("Paris", "Paris", Y), ("paris.", "Paris", Y), ("**Paris**", "Paris", Y),
        (r"\text{even}", "even", Y), ("even", "odd", N), ("The answer is Paris", "Paris", Y), ("not Paris", "Paris", N),
        ("Paris or London", "Paris", N), ("A", "A", Y), ("a", "A", Y), ("(A)", "A", Y), (r"\text{(A)}", "A", Y),
        ("B", "A", N), ("AC", "CA", N), ("five", "5", N), ("The answer is not 5", "5", N), ("not 5", "5", N),
        ("The answer is 5", "5", Y), ("The final answer is: 5.", "5", Y), ("Answer: 5", "5", Y), ("It is 5", "5", Y),
        ("So the answer is $5$", "5", Y), ("less than 5", "5", N), ("I do not know", "5", N), ("5 minus 5", "5", N),
        ("5, I think", "5", N), ("maybe 5", "5", N),
    ],
    "booleans": [
        ("True", "true", Y), ("true", "False", N), ("Yes", "yes", Y), ("yes.", "Yes", Y), ("yes", "no", N),
        ("True", "1", N), (r"\text{Yes}", "yes", Y), ("yes and no", "yes", N), ("not true", "true", N),
    ],
    "dates and times": [
        ("March 5, 2020", "March 5, 2020", Y), ("5 March 2020", "March 5, 2020", Y),
        ("Mar 5, 2020", "March 5, 2020", Y),
        ("March 5th, 2020", "March 5, 2020", Y), ("March 6, 2020", "March 5, 2020", N), ("May 5", "March 5", N),
        ("3:30", "3:30", Y), ("3:30 PM", "3:30 pm", Y), ("3:30 p.m.", "3:30 PM", Y), ("3:30 AM", "3:30 PM", N),
        ("3:40", "3:30", N), ("3:4", "3:4", Y), ("3 : 4", "3:4", Y), ("4:3", "3:4", N), ("0.75", "3:4", N),
    ],
    "one answer that states several": [
        ("4 or 5", "5", N), ("4 or 5", "4", N), ("$4$ or $5$", "5", N), ("4, 5", "5", N), ("4 and 5", "5", N),
        ("4; 5", "4", N), (r"4 \text{ or } 5", "4", N), ("5 or 5.0", "5", N), (r"\pm 2", "2", N), ("±2", "2", N),
        ("x = 4 or x = 5", "5", N), ("41 or 42", "43", N), ("5", "4 or 5", N), ("5 or 4", "4 or 5", Y),
        ("4, 5", "4 or 5", Y), ("4, 6", "4, 5", N), ("4, 5, 6", "4, 5", N), ("2, -2", r"\pm 2", Y), ("±2", "-2, 2", Y),
        ("x = 4, x = 5", "4, 5", Y), ("1, 2", "2, 1", Y), ("1 or 2 or 3", "1, 2, 3", Y), ("{4, 5}", "4", N),
    ],
    "sets, tuples and intervals": [
        (r"\{1, 2\}", r"\{2, 1\}", Y), (r"\{1,2\}", r"\{1,3\}", N), (r"\{1,2\}", r"\{1,2,3\}", N),
        (r"\{1, 2\}", "1, 2", Y), ("(1,2)", "(1, 2)", Y), ("(1,2)", "(2,1)", N), ("(1, 2, 3)", "(1, 2)", N),
        ("(0.5, 2)", r"\left(\frac{1}{2}, 2\right)", Y), ("1, 2", "(1, 2)", Y), ("2, 1", "(1, 2)", N),
        ("[1, 2]", "[1,2]", Y), ("(1, 2)", "[1, 2]", N), ("(1, 2]", "[1, 2)", N), ("(1, 2]", r"\left(1,2\right]", Y),
        (r"(-\infty, 3)", "(-∞, 3)", Y), (r"(-\infty, 3]", r"(-\infty, 3)", N),
        (r"(0,1) \cup (2,3)", r"(2,3) \cup (0,1)", Y), (r"(0,1) \cup (2,3)", "(0,3)", N), ("5", "(5, 6)", N),
        (r"(1, \sqrt{8})", r"(1, 2\sqrt{2})", Y),
    ],
    "radicals, constants and complex numbers": [
        (r"2\sqrt{2}", r"\sqrt{8}", Y), (r"\sqrt{8}", r"2\sqrt{2}", Y), ("2√2", r"2\sqrt{2}", Y), (r"\sqrt2", "√2", Y),
        (r"\sqrt{2}", r"\sqrt{3}", N), ("1.41421356", r"\sqrt{2}", N), ("3.141593", r"\pi", N), ("3.14", "π", N),
        ("π", r"\pi", Y), ("pi", r"\pi", Y), ("2π", r"2\pi", Y), (r"\frac{\pi}{2}", "π/2", Y), (r"\pi", "3.141593", N),
        ("i", r"\sqrt{-1}", Y), (r"\sqrt{-1}", "i", Y), ("3+4i", "4i+3", Y), ("3+4i", "3-4i", N),
        (r"\frac{1}{\sqrt{2}}", r"\frac{\sqrt{2}}{2}", Y), (r"1+\sqrt{3}", r"\sqrt{3}+1", Y), ("4", r"\sqrt{16}", Y),
        (r"2\sqrt{3} \text{ cm}", r"2\sqrt{3}", Y), (r"2\sqrt{3} \text{ cm}", r"2\sqrt{3} \text{ km}", N),
    ],
    "algebra": [
        ("x=5", "5", Y), ("x = 5", "x=5", Y), ("5", "x=5", Y), ("y = 5", "x = 5", N), ("5 = x", "x = 5", Y),
        ("x = 6", "5", N), ("x^2+2x+1", "(x+1)^2", Y), ("x+1", "x+2", N), ("2x", "x2", N), ("x2", "2x", N),
        ("x*2", "2x", Y), ("y = 2x + 1", "2x+1", Y), ("y = 1 + 2x", "y = 2x + 1", Y), ("not x+1", "x+1", N),
        ("x+5", "5", N), ("f(x) = 2x", "2x", Y), (r"\frac{x}{2}", "x/2", Y), ("x³", "x^3", Y), ("x^2", "x^3", N),
        ("12 + 30 = x", "42", N),
    ],
}  # fmt: skip


def test_the_table_is_whole() -> None:
    rows = [row for group in PAIRS.values() for row in group]
    assert len(rows) >= 270
    assert len({row[:2] for row in rows}) == len(rows)


@pytest.mark.parametrize("kind", PAIRS)
def test_pairs_have_the_verdict_that_they_should(kind: str) -> None:
    found = [(given, wanted, equal(given, wanted, timeout=60)) for given, wanted, _ in PAIRS[kind]]
    assert [row for row, (*_, verdict) in zip(found, PAIRS[kind], strict=True) if row[2] is not verdict] == []
