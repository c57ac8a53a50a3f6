from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedkeep.errors import ConfigError, DataError
from fedkeep.metrics import (
    CentralisedEvents,
    accuracy_by,
    average,
    decompose,
    decompose_by,
    forgettable,
    local_client_forgetting,
    margin_error,
    per_class_forgetting,
    personalised,
    steadiness,
)

NAN = float("nan")
EXAMPLES = settings(max_examples=60, deadline=None)
SHARES = st.integers(0, 8).map(lambda eighths: eighths / 8)  # sums of eighths are exact


def bits(text: str) -> np.ndarray:
    return np.array([letter == "1" for letter in text], bool)


@st.composite
def squares(draw: st.DrawFn) -> np.ndarray:
    clients = draw(st.integers(1, 6))
    return draw(hnp.arrays(np.float64, (clients, clients), elements=SHARES | st.just(NAN)))


@st.composite
def rounds(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
    """before[n], local[n], after[n], groups[n], number of groups."""
    n, count = draw(st.integers(0, 30)), draw(st.integers(1, 5))
    masks = [draw(hnp.arrays(np.bool_, n)) for _ in range(3)]
    return masks[0], masks[1], masks[2], draw(hnp.arrays(np.int64, n, elements=st.integers(0, count - 1))), count


class TestLocalClientForgetting:
    before = np.array([0.5, 0.75, 1.0])
    after = np.array([[1.0, 0.25, 0.5], [0.0, 1.0, 1.0], [0.5, 0.5, 0.25]])  # [model, data]
    F = np.array([[-0.5, 0.5, 0.0], [0.5, -0.25, 0.25], [0.5, 0.0, 0.75]])  # [data, model]

    def test_worked_by_hand(self):
        np.testing.assert_array_equal(local_client_forgetting(self.before, self.after), self.F)

    def test_average_by_model_and_by_data(self):
        np.testing.assert_array_equal(average(self.F), [0.5, 0.25, 0.125])
        np.testing.assert_array_equal(average(self.F, by="data"), [0.25, 0.375, 0.25])

    def test_data_outside_the_cohort(self):
        before = np.array([0.5, 0.75, 1.0, 0.25])
        after = np.array([[1.0, 0.25, 0.5, 0.25], [0.0, 1.0, 1.0, 0.75]])  # models of clients 2 and 0
        F = local_client_forgetting(before, after)
        np.testing.assert_array_equal(F, [[-0.5, 0.5], [0.5, -0.25], [0.5, 0.0], [0.0, -0.5]])
        own = np.array([2, 0])
        np.testing.assert_allclose(average(F, own=own), [0.0, -0.25], atol=1e-15)
        np.testing.assert_array_equal(average(F, by="data", own=own), [-0.5, 0.125, 0.0, -0.25])

    def test_a_model_without_own_data_counts_every_row(self):
        F = np.array([[1.0, 0.5], [0.0, 0.25]])
        np.testing.assert_array_equal(average(F, own=np.array([-1, 1])), [0.5, 0.5])
        np.testing.assert_array_equal(average(F, "data", own=np.array([-1, 1])), [0.75, 0.0])

    def test_a_client_without_held_out_data_is_left_out(self):
        F = local_client_forgetting(np.array([0.5, NAN, 1.0]), np.where([True, False, True], self.after, NAN))
        assert np.isnan(F[1]).all()
        np.testing.assert_array_equal(average(F), [0.5, 0.25, 0.0])
        np.testing.assert_array_equal(average(F, by="data"), [0.25, NAN, 0.25])

    def test_one_client_only_has_no_average(self):
        for by in ("model", "data"):
            np.testing.assert_array_equal(average(np.array([[0.5]]), by), [NAN])

    @EXAMPLES
    @given(squares())
    def test_average_against_a_loop(self, F):
        for by, matrix in (("data", F), ("model", F.T)):
            for k, value in enumerate(average(F, by)):
                terms = [x for i, x in enumerate(matrix[k]) if i != k and not math.isnan(x)]
                assert value == pytest.approx(sum(terms) / len(terms) if terms else NAN, nan_ok=True)

    @EXAMPLES
    @given(squares(), st.randoms(use_true_random=False))
    def test_permuting_clients_permutes_the_averages(self, F, random):
        order = np.array(random.sample(range(len(F)), len(F)))
        for by in ("model", "data"):
            np.testing.assert_array_equal(average(F[np.ix_(order, order)], by), average(F, by)[order])
        np.testing.assert_array_equal(average(F[order], "model", own=np.argsort(order)), average(F, "model"))

    @EXAMPLES
    @given(squares(), st.floats(allow_nan=True, allow_infinity=True))
    def test_the_diagonal_is_never_looked_at(self, F, anything):
        other = F.copy()
        np.fill_diagonal(other, anything)
        for by in ("model", "data"):
            np.testing.assert_array_equal(average(other, by), average(F, by))

    def test_refuses_what_does_not_fit(self):
        with pytest.raises(DataError, match=r"before\[k\] and after\[i, k\]"):
            local_client_forgetting(np.zeros(3), np.zeros((3, 2)))
        with pytest.raises(ConfigError, match='did you mean "model"'):
            average(self.F, by="modell")  # type: ignore[arg-type]
        with pytest.raises(DataError, match=r"\(3, 2\).*own\[i\]"):
            average(np.zeros((3, 2)))
        for own in ([0], [0, 3], [0, -2], [0.0, 1.0]):
            with pytest.raises(DataError, match="own="):
                average(np.zeros((3, 2)), own=np.array(own))


class TestForgettable:
    def test_right_locally_and_wrong_globally(self):
        assert forgettable(bits("1100"), bits("1010")) == 1
        assert forgettable(bits("1110"), bits("0001")) == 3
        assert forgettable(bits("0000"), bits("0101")) == 0
        assert forgettable(bits(""), bits("")) == 0

    @EXAMPLES
    @given(rounds())
    def test_is_the_aggregation_loss_of_the_decomposition(self, example):
        before, local, after, _, _ = example
        assert forgettable(local, after) == decompose(before, local, after).forgotten_aggregation

    def test_refuses_other_types_and_shapes(self):
        with pytest.raises(DataError, match=r"\(2,\).*\(3,\)"):
            forgettable(bits("10"), bits("101"))
        with pytest.raises(DataError, match="global_correct is int64"):
            forgettable(bits("10"), np.array([1, 0]))


class TestAccuracyBy:
    def test_worked_by_hand(self):
        groups = np.array([0, 3, 0, 1, 3, 3])
        expected = [0.5, 1.0, NAN, 2 / 3]
        np.testing.assert_array_equal(accuracy_by(bits("110110"), groups, 4), expected)

    def test_a_stack_of_models(self):
        stack = np.stack([[bits("110"), bits("001")], [bits("000"), bits("111")], [bits("101"), bits("010")]])
        expected = [[[1.0, 0.5], [0.0, 0.5]], [[0.0, 0.0], [1.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]]
        groups = np.array([1, 0, 1], np.uint8)
        # groups: example 1 is group 0, examples 0 and 2 are group 1
        np.testing.assert_array_equal(accuracy_by(stack, groups, 2), expected)

    def test_nothing_to_count(self):
        assert np.isnan(accuracy_by(np.zeros((2, 0), bool), np.zeros(0, int), 3)).all()
        assert accuracy_by(np.zeros((2, 0), bool), np.zeros(0, int), 3).shape == (2, 3)
        assert accuracy_by(np.zeros((0, 4), bool), np.zeros(4, int), 3).shape == (0, 3)

    @EXAMPLES
    @given(rounds())
    def test_against_a_loop(self, example):
        correct, other, _, groups, count = example
        for row, values in zip((correct, other), accuracy_by(np.stack((correct, other)), groups, count), strict=True):
            for group, value in enumerate(values):
                members = row[groups == group]
                assert value == pytest.approx(members.mean() if members.size else NAN, nan_ok=True)

    def test_refuses_what_does_not_fit(self):
        with pytest.raises(DataError, match="correct is float64"):
            accuracy_by(np.zeros(2), np.zeros(2, int), 2)
        with pytest.raises(DataError, match=r"\(3,\).*\(2,\)"):
            accuracy_by(bits("10"), np.zeros(3, int), 2)
        for groups in ([0, 2], [-1, 0], [0.0, 1.0]):
            with pytest.raises(DataError, match=r"give 0 \.\.\. 1"):
                accuracy_by(bits("10"), np.array(groups), 2)

    def test_per_class_forgetting(self):
        labels = np.array([0, 0, 1, 1, 3])
        after = np.stack([bits("10110"), bits("00001")])
        expected = [[0.5, -0.5, NAN, 0.0], [1.0, 0.5, NAN, -1.0]]
        np.testing.assert_array_equal(per_class_forgetting(bits("11100"), after, labels, 4), expected)
        np.testing.assert_array_equal(per_class_forgetting(bits("11100"), after[0], labels, 4), expected[0])


class TestDecomposition:
    # pattern (before, local, after) number p occurs 2**p times, so every sum tells which patterns are in it
    patterns = np.repeat(np.array(list(itertools.product((False, True), repeat=3))), 2 ** np.arange(8), axis=0)

    def test_every_name_holds_its_patterns(self):
        round_ = decompose(*self.patterns.T)
        assert round_.to_dict() == {
            "total": 255,
            "right_before": 16 + 32 + 64 + 128,
            "right_local": 4 + 8 + 64 + 128,
            "right_after": 2 + 8 + 32 + 128,
            "learned_local": 4 + 8,
            "forgotten_local": 16 + 32,
            "forgotten_aggregation": 4 + 64,
            "regained_aggregation": 2 + 32,
            "regained": 32,
            "taught_by_others": 2,
            "forgotten_known": 64,
            "forgotten_new": 4,
        }
        np.testing.assert_array_equal(round_.counts, 2 ** np.arange(8).reshape(2, 2, 2))

    def test_groups_are_counted_apart(self):
        groups = np.repeat([2, 0], [127, 128])  # the last pattern, right all along, is group 0
        by = decompose_by(*self.patterns.T, groups, 3)
        assert by.counts.shape == (2, 2, 2, 3)
        assert by.to_dict()["right_after"] == [128, 0, 2 + 8 + 32]
        assert by.forgotten_known.tolist() == [0, 0, 64]
        assert json.loads(json.dumps(by.to_dict()))["total"] == [128, 0, 127]

    @EXAMPLES
    @given(rounds())
    def test_the_sums_add_up(self, example):
        before, local, after, groups, count = example
        by, whole = decompose_by(before, local, after, groups, count), decompose(before, local, after)
        for d in (by, whole):
            gained, lost = d.learned_local + d.regained_aggregation, d.forgotten_local + d.forgotten_aggregation
            np.testing.assert_array_equal(d.right_after, d.right_before + gained - lost)
            np.testing.assert_array_equal(d.right_local, d.right_before + d.learned_local - d.forgotten_local)
            np.testing.assert_array_equal(d.regained_aggregation, d.regained + d.taught_by_others)
            np.testing.assert_array_equal(d.forgotten_aggregation, d.forgotten_known + d.forgotten_new)
        assert (whole.total, whole.right_before) == (len(before), before.sum())
        assert (whole.right_local, whole.right_after) == (local.sum(), after.sum())
        np.testing.assert_array_equal(by.counts.sum(-1), whole.counts)
        for group in range(count):
            member = groups == group
            alone = decompose(before[member], local[member], after[member])
            np.testing.assert_array_equal(by.counts[..., group], alone.counts)

    @EXAMPLES
    @given(rounds(), st.randoms(use_true_random=False))
    def test_renaming_groups_renames_the_counts(self, example, random):
        before, local, after, groups, count = example
        names = np.array(random.sample(range(count), count))
        renamed = decompose_by(before, local, after, names[groups], count)
        np.testing.assert_array_equal(
            renamed.counts[..., names], decompose_by(before, local, after, groups, count).counts
        )

    def test_any_shape_but_the_same(self):
        square = self.patterns[:64].reshape(8, 8, 3)
        before, local, after = np.moveaxis(square, -1, 0)
        assert decompose(before, local, after).total == 64
        with pytest.raises(DataError, match="before, local, after have shapes"):
            decompose(before, local, after[1:])
        with pytest.raises(DataError, match="one group number per example"):
            decompose_by(before, local, after, np.zeros(64, int), 1)


class TestSteadiness:
    def test_worked_by_hand(self):
        # changes +0.25, -0.5, +0.25, +0.5: mean 1/8, mean square 5/32
        std, drop = steadiness(np.array([0.25, 0.5, 0.0, 0.25, 0.75]))
        assert std == pytest.approx(math.sqrt(5 / 32 - 1 / 64))
        assert drop == 0.5

    def test_a_straight_climb_is_perfectly_steady(self):
        assert steadiness(np.arange(5) / 8) == (0.0, 0.0)

    def test_without_changes_there_is_nothing_to_say(self):
        for accuracy in ([], [0.5], [0.5, NAN, 0.75]):
            assert all(math.isnan(value) for value in steadiness(np.array(accuracy)))

    def test_unmeasured_rounds_are_left_out(self):
        assert steadiness(np.array([0.5, 0.25, NAN, 1.0, 0.75])) == (0.0, 0.25)

    def test_a_single_curve_is_asked_for(self):
        with pytest.raises(DataError, match=r"\(2, 3\)"):
            steadiness(np.zeros((2, 3)))


class TestPersonalised:
    def test_worked_by_hand(self):
        counts = np.array([1, 9, 0])  # log 9 = 2.197...
        logits = np.array([[2.0, 0.0, 99.0], [2.2, 0.0, 0.0], [-5.0, -6.0, 0.0]])
        np.testing.assert_array_equal(personalised(logits, counts), [1, 0, 1])
        np.testing.assert_array_equal(personalised(logits[1], counts), 0)

    @EXAMPLES
    @given(
        hnp.arrays(np.float32, (2, 3, 5), elements=st.floats(-50, 50, width=32)),
        hnp.arrays(np.int64, 5, elements=st.integers(0, 3)).filter(np.any),
    )
    def test_only_present_classes_and_scale_free(self, logits, counts):
        predictions = personalised(logits, counts)
        assert predictions.shape == (2, 3)
        assert (counts[predictions] > 0).all()
        beta = counts[counts > 0] / counts.sum()
        scores = logits[..., counts > 0] + np.log(beta)
        chosen = np.take_along_axis(logits, predictions[..., None], -1)[..., 0]
        reached = chosen + np.log(counts[predictions] / counts.sum())
        np.testing.assert_allclose(reached, scores.max(-1), atol=1e-9)

    def test_equal_counts_change_nothing(self):
        logits = np.array([[0.5, 2.0, 1.0], [3.0, -1.0, 2.0]])
        np.testing.assert_array_equal(personalised(logits, np.array([4, 4, 4])), [1, 0])

    def test_an_absent_class_is_not_even_predicted_when_nothing_else_is_finite(self):
        assert personalised(np.array([np.inf, -np.inf, -np.inf]), np.array([0, 1, 1])) in (1, 2)

    def test_refuses_what_does_not_fit(self):
        with pytest.raises(DataError, match=r"\(2, 3\), \(2,\)"):
            personalised(np.zeros((2, 3)), np.ones(2))
        for counts in ([0, 0], [-1, 2], [NAN, 1]):
            with pytest.raises(DataError, match="class_counts="):
                personalised(np.zeros(2), np.array(counts))


class TestCentralisedEvents:
    def test_worked_by_hand(self):
        events = CentralisedEvents(4)
        look = np.array([0, 1, 2])
        assert events.observe(look, bits("110"), np.array([0.25, 0.25, 0.75])) == (0, 0)
        # 0 lost; 1 kept, surer; 2 still wrong, further off
        assert events.observe(look, bits("010"), np.array([0.5, 0.125, 0.875])) == (1, 2)
        # 3 for the first time; 0 as before; 1 kept, less sure
        assert events.observe(np.array([3, 0, 1]), bits("001"), np.array([0.5, 0.5, 0.25])) == (0, 1)
        # 1 lost though its margin error shrank: an event under both definitions
        assert events.observe(np.array([1]), bits("0"), np.array([0.125])) == (1, 1)
        assert events.total == (2, 4)
        assert events.accuracy_events.tolist() == [1, 1, 0, 0]
        assert events.margin_events.tolist() == [1, 2, 1, 0]

    @EXAMPLES
    @given(st.data())
    def test_against_a_memory_of_every_look(self, data):
        events, last, counts = CentralisedEvents(4), {}, np.zeros((2, 4), int)
        for _ in range(data.draw(st.integers(0, 6))):
            indices = data.draw(st.lists(st.integers(0, 3), unique=True))
            looks = [(data.draw(st.booleans()), data.draw(SHARES)) for _ in indices]
            for index, (right, margin) in zip(indices, looks, strict=True):
                was_right, was_margin = last.get(index, (False, 1.0))
                counts[0, index] += was_right and not right
                counts[1, index] += (was_right and not right) or margin > was_margin
                last[index] = (right, margin)
            events.observe(
                np.array(indices, int), np.array([r for r, _ in looks], bool), np.array([m for _, m in looks])
            )
        np.testing.assert_array_equal(events.accuracy_events, counts[0])
        np.testing.assert_array_equal(events.margin_events, counts[1])
        assert events.total.margin >= events.total.accuracy

    def test_refuses_what_does_not_fit(self):
        events = CentralisedEvents(2)
        with pytest.raises(DataError, match="twice"):
            events.observe(np.array([1, 1]), bits("11"), np.zeros(2))
        with pytest.raises(DataError, match=r"0 \.\.\. 1"):
            events.observe(np.array([2]), bits("1"), np.zeros(1))
        with pytest.raises(DataError, match="shapes"):
            events.observe(np.array([1]), bits("11"), np.zeros(2))
        with pytest.raises(DataError, match="correct is int64"):
            events.observe(np.array([1]), np.array([1]), np.zeros(1))
        assert events.total == (0, 0)

    def test_margin_error(self):
        logits = np.log([[0.5, 0.25, 0.25], [0.125, 0.125, 0.75]])
        np.testing.assert_allclose(
            margin_error(logits + np.array([[1000.0], [-1000.0]]), np.array([1, 2])), [0.75, 0.25]
        )
        # 1 - p_y itself would round to zero here
        assert margin_error(np.array([[50.0, 0.0]]), np.array([0]))[0] == pytest.approx(math.exp(-50), rel=1e-9)
        with pytest.raises(DataError, match="logits"):
            margin_error(logits, np.array([1]))
