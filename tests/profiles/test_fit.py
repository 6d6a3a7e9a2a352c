"""The line T = k·l + c."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

from disco.profiles import fit_line

LENGTHS = st.lists(st.integers(1, 4096), min_size=2, max_size=30).filter(lambda x: len(set(x)) > 1)


@given(LENGTHS, st.floats(1e-5, 0.1), st.floats(-5, 5))
def test_points_on_a_line_give_the_line(lengths, k, c):
    fit = fit_line(lengths, k * np.array(lengths) + c)
    assert fit.k_s_per_token == pytest.approx(k, rel=1e-6, abs=1e-9)
    assert fit.c_s == pytest.approx(c, rel=1e-6, abs=1e-6)
    assert fit.r2 == pytest.approx(1.0, abs=1e-6)
    assert fit.n == len(lengths)
    assert fit.ttft_s(100) == pytest.approx(100 * k + c, abs=1e-5)


@given(LENGTHS, st.data())
def test_the_non_negative_fit_is_the_best_of_those_allowed(lengths, data):
    times = data.draw(st.lists(st.floats(0, 10), min_size=len(lengths), max_size=len(lengths)))
    fit = fit_line(lengths, times, non_negative=True)
    assert fit.k_s_per_token >= 0
    assert fit.c_s >= 0
    # Lengths in thousands, so that scipy's solver sees columns of similar size.
    x = np.array(lengths) / 1000
    _, best = nnls(np.column_stack([x, np.ones(len(x))]), np.array(times))
    left = np.linalg.norm(np.array(times) - [fit.ttft_s(length) for length in lengths])
    assert left == pytest.approx(best, rel=1e-6, abs=1e-6)


def test_a_line_that_bends_upwards_gets_no_negative_start():
    lengths = np.array([16, 64, 256, 1024])
    times = 4e-3 * lengths + 2e-6 * lengths**2
    assert fit_line(lengths, times).c_s < 0
    fit = fit_line(lengths, times, non_negative=True)
    assert fit.c_s == 0
    assert 0.99 < fit.r2 < 1
    assert fit_line([1, 2], [3.0, 3.0]).r2 == 1.0
    falling = fit_line([1, 2], [3.0, 1.0], non_negative=True)
    assert (falling.k_s_per_token, falling.c_s) == (0.0, pytest.approx(2.0))


@pytest.mark.parametrize(
    ("lengths", "times", "said"),
    [
        ([], [], "at least two different prompt lengths"),
        ([5], [1.0], "at least two different prompt lengths"),
        ([5, 5, 5], [1.0, 2.0, 3.0], "at least two different prompt lengths"),
        ([1, 2], [1.0], "as many"),
        ([1, 2], [1.0, float("nan")], "finite"),
    ],
)
def test_nonsense_is_refused_with_the_remedy(lengths, times, said):
    with pytest.raises(ValueError, match=said):
        fit_line(lengths, times)
