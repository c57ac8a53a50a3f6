"""Intervals, paired differences and corrections on literal numbers, against tables, hand and SciPy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from scipy import stats

from fedkeep.experiment.statistics import holm, mean_interval, paired_difference

LEFT = [0.81, 0.79, 0.84, 0.80, 0.86]
RIGHT = [0.78, 0.77, 0.80, 0.79, 0.80]  # differences 0.03 0.02 0.04 0.01 0.06: mean 0.032, variance 0.00037


def test_interval_by_hand():
    # 1, 2, 3, 4, 5: mean 3, s = sqrt(2.5); the t-table gives 2.776 for 4 degrees of freedom
    found = mean_interval([1, 2, 3, 4, 5])
    assert found.mean == 3
    assert found.half_width == pytest.approx(2.776 * math.sqrt(2.5 / 5), abs=5e-4)
    assert (found.count, found.missing) == (5, 0)


def test_interval_against_scipy():
    found = mean_interval(LEFT)
    low, high = stats.ttest_1samp(LEFT, 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-12)
    low, high = stats.ttest_1samp(LEFT, 0).confidence_interval(0.8)
    narrow = mean_interval(LEFT, level=0.8)
    assert (narrow.low, narrow.high) == pytest.approx((low, high), rel=1e-12)


def test_one_value_has_no_interval_and_none_no_mean():
    one = mean_interval([0.7])
    assert one.mean == 0.7 and math.isnan(one.low) and math.isnan(one.high) and one.count == 1
    none = mean_interval([])
    assert math.isnan(none.mean) and none.count == 0


def test_missing_values_are_counted():
    found = mean_interval([math.nan, 12, math.nan, 14])
    assert (found.mean, found.count, found.missing) == (13, 2, 2)
    only = mean_interval([math.nan, math.nan])
    assert math.isnan(only.mean) and (only.count, only.missing) == (0, 2)


def test_paired_difference_by_hand_and_scipy():
    found = paired_difference(LEFT, RIGHT)
    assert found.mean == pytest.approx(0.032)
    half = 2.776 * math.sqrt(0.00037 / 5)
    assert found.high - found.mean == pytest.approx(half, abs=1e-5)
    test = stats.ttest_rel(LEFT, RIGHT)
    assert found.p == pytest.approx(test.pvalue, rel=1e-9)
    assert (found.low, found.high) == pytest.approx(tuple(test.confidence_interval(0.95)), rel=1e-9)
    assert found.p == pytest.approx(0.0204, abs=5e-4)  # t = 3.72 with 4 degrees of freedom
    back = paired_difference(RIGHT, LEFT)
    assert (back.mean, back.p) == pytest.approx((-found.mean, found.p))


def test_pairs_with_nan_are_left_out():
    found = paired_difference([*LEFT, math.nan, 0.1], [*RIGHT, 0.5, math.nan])
    assert found == paired_difference(LEFT, RIGHT)


def test_no_difference_at_all():
    found = paired_difference(LEFT, LEFT)
    assert (found.mean, found.low, found.high, found.p, found.count) == (0, 0, 0, 1, 5)


def test_equal_differences_leave_nothing_to_judge_by():
    # 0.9 - 0.8 and 0.4 - 0.3 differ in the last bits only
    found = paired_difference([0.9, 0.4, 0.6], [0.8, 0.3, 0.5])
    assert found.mean == pytest.approx(0.1)
    assert found.low == found.high == found.mean
    assert found.p == 2 / 2**3


def test_one_pair_has_a_difference_only():
    found = paired_difference([0.9], [0.8])
    assert found.mean == pytest.approx(0.1) and found.count == 1
    assert math.isnan(found.p) and math.isnan(found.low) and math.isnan(found.high)


def test_unequal_lengths_are_refused():
    with pytest.raises(ValueError, match="cannot be paired"):
        paired_difference([1, 2], [1])


def test_holm_by_hand():
    # sorted 0.005 0.01 0.03 0.04, times 4 3 2 1 = 0.02 0.03 0.06 0.04 -> the last is lifted to 0.06
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1, 1]
    assert holm([0.02]) == [0.02]
    assert holm([]) == []


def test_holm_ignores_what_is_no_comparison():
    found = holm([math.nan, 0.01, math.nan, 0.02])
    assert found[1] == 0.02 and found[3] == 0.02
    assert math.isnan(found[0]) and math.isnan(found[2])


@given(some.lists(some.floats(0, 1), min_size=1, max_size=8))
def test_holm_keeps_the_order_and_stays_between_plain_and_bonferroni(p_values):
    corrected = holm(p_values)
    assert all(p <= c <= 1 for p, c in zip(p_values, corrected, strict=True))
    order = np.argsort(p_values, kind="stable")
    assert (np.diff(np.array(corrected)[order]) >= 0).all()
    # Holm rejects at 5 % exactly what its step-down procedure rejects
    rejected, left = set(), len(p_values)
    for index in order:
        if p_values[index] > 0.05 / left and not math.isclose(p_values[index] * left, 0.05):
            break
        rejected.add(int(index))
        left -= 1
    assert {i for i, c in enumerate(corrected) if c <= 0.05 or math.isclose(c, 0.05)} == rejected
