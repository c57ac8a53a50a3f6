"""Partition, matrices and flows against tables worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkeep.report.flows import FLOWS, classes, ledger, most_forgotten_data
from fedkeep.report.holders import Holders, forgettable, holders, minority_bands
from fedkeep.report.matrices import matrices, matrix, pack, slider, unpack
from fedkeep.report.series import group, load_report
from report.made_up import dealt, made_up, pairs

TWO_TO_SEVEN = [[90, 10, 0, 0], [60, 40, 0, 0], *[[0, 0, 50 + 5 * k, 50 - 5 * k] for k in range(7)]]


def held(counts: list[list[int]], held_out: int = 10) -> Holders:
    found = holders(made_up(accuracy=[0.5], tables={"partition": dealt(counts, held_out)}))
    assert found is not None
    return found


def test_the_smaller_label_cluster_is_the_minority() -> None:
    """2:7 of the FedWAvg paper: two clients own labels 0 and 1, seven own 2 and 3."""
    assert held(TWO_TO_SEVEN).minority.tolist() == [True, True, *[False] * 7]


def test_where_all_clients_are_alike_nobody_is_a_minority() -> None:
    assert not held([[10, 10], [10, 10], [10, 10]]).minority.any()
    assert not held([[10, 0], [10, 0], [0, 10], [0, 10]]).minority.any(), "half of the clients"


def test_a_trace_of_a_label_does_not_count_as_holding_it() -> None:
    """All hold label 1, but three of them less than 5 %: the first client is alone with it."""
    assert held([[10, 90], [99, 1], [98, 2], [97, 3]]).minority.tolist() == [True, False, False, False]


def test_majority_order_and_skew() -> None:
    found = held([[1, 9], [9, 1], [0, 10], [10, 0]])
    assert found.majority.tolist() == [1, 0, 1, 0]
    assert found.order.tolist() == [1, 3, 0, 2]
    # shares .1/.9 .9/.1 0/1 1/0 against 1/2: distances .4 .4 .5 .5
    assert found.skew().distance == pytest.approx(0.45)
    assert found.skew().classes_per_client == 1.5


def test_what_models_are_judged_on_is_said() -> None:
    assert held([[10], [10]], held_out=2).judged_on() == "each client's own held-out examples"
    assert "training examples" in held([[10], [10]], held_out=0).judged_on()


CLIENTS = {
    "round": [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4],
    "client": [0, 1, 2] * 4,
    "forgettable": [np.nan, np.nan, np.nan, 8, 4, np.nan, 6, np.nan, 2, 2, np.nan, 4],
}


def test_forgettable_examples_per_client_and_round() -> None:
    run = made_up(accuracy=[0.5] * 4, tables={"clients": CLIENTS, "partition": dealt([[20, 0], [0, 10], [0, 40]])})
    found = forgettable(run)
    assert found is not None
    assert found.clients.tolist() == [0, 1, 2] and found.minority.tolist() == [True, False, False]
    np.testing.assert_array_equal(
        found.counts, [[np.nan, 8, 6, 2], [np.nan, 4, np.nan, np.nan], [np.nan, np.nan, 2, 4]]
    )
    np.testing.assert_array_equal(found.late, [4, np.nan, 3])  # rounds 3 and 4
    np.testing.assert_allclose(found.share, [4 / 20, np.nan, 3 / 40])


def test_spans_of_rounds_average_only_where_a_client_took_part() -> None:
    run = made_up(accuracy=[0.5] * 4, tables={"clients": CLIENTS})
    found = forgettable(run, bins=2)  # spans end with rounds 1 and 4
    assert found is not None and found.rounds.tolist() == [1, 4]
    np.testing.assert_allclose(found.counts[:, 1], [16 / 3, 4, 3])
    assert not found.minority.any(), "the partition is not known"


def test_minority_and_others_over_rounds() -> None:
    run = made_up(accuracy=[0.5] * 4, tables={"clients": CLIENTS, "partition": dealt([[20, 0], [0, 10], [0, 40]])})
    bands = minority_bands(group([run]).series[0])
    assert bands is not None
    few, others = bands
    assert few.rounds.tolist() == [2, 3, 4]
    np.testing.assert_allclose(few.mean, [8 / 20, 6 / 20, 2 / 20])
    np.testing.assert_allclose(others.mean, [4 / 10, 2 / 40, 4 / 40])


LOCAL = {5: {5: 0.9, 7: 0.2, 1: 0.4}, 7: {5: 0.1, 7: 1.0, 1: 0.5}}
BEFORE = {5: 0.5, 7: 0.6, 1: 0.7}


def test_the_matrix_has_own_data_on_its_diagonal_and_outside_clients_behind() -> None:
    found = matrix(made_up(accuracy=[0.5], tables={"pairs": pairs(1, LOCAL, BEFORE)}), 1)
    assert found is not None
    assert found.models.tolist() == [5, 7] and found.data.tolist() == [5, 7, 1]
    np.testing.assert_allclose(found.local, [[0.9, 0.2, 0.4], [0.1, 1.0, 0.5]])
    np.testing.assert_allclose(found.forgetting, [[-0.4, 0.4, 0.3], [0.4, -0.4, 0.2]])
    assert matrix(made_up(accuracy=[0.5], tables={"pairs": pairs(1, LOCAL, BEFORE)}), 2) is None


def test_clients_with_the_same_label_stand_side_by_side() -> None:
    counts = [[0, 9], [9, 0], [0, 9]]  # clients 0 and 2 have label 1
    local = {k: dict.fromkeys(range(3), 0.5) for k in range(3)}
    tables = {"pairs": pairs(1, local, dict.fromkeys(range(3), 0.5)), "partition": dealt(counts)}
    found = matrix(made_up(accuracy=[0.5], tables=tables), 1)
    assert found is not None and found.models.tolist() == [1, 0, 2]


def test_a_large_matrix_is_thinned_out_and_says_so() -> None:
    local = {i: {k: i / 10 for k in range(10)} for i in range(10)}
    run = made_up(accuracy=[0.5], tables={"pairs": pairs(1, local, dict.fromkeys(range(10), 1.0))})
    found = matrix(run, 1, side=4)
    assert found is not None
    assert found.models.tolist() == found.data.tolist() == [0, 3, 6, 9] and found.left_out == 6
    np.testing.assert_allclose(found.local[:, 0], [0, 0.3, 0.6, 0.9])


@given(st.lists(st.integers(0, 10000) | st.none()))
def test_packing_keeps_four_decimals(values: list[int | None]) -> None:
    given = np.array([np.nan if value is None else value / 10000 for value in values])
    np.testing.assert_array_equal(unpack(pack(given)), given)


def test_the_slider_drops_seeds_then_rounds_to_fit_its_budget() -> None:
    def run(seed: int):
        rows = [pairs(number, LOCAL, BEFORE) for number in (1, 2, 3, 4)]
        return made_up(
            seed=seed,
            accuracy=[0.5] * 4,
            tables={"pairs": {k: [value for r in rows for value in r[k]] for k in rows[0]}},
        )

    report = group([run(0), run(1)])  # 2 seeds x 4 rounds x 6 cells
    everything = slider(report)
    assert (everything["seeds"], everything["rounds"], everything["notes"]) == ([0, 1], [1, 2, 3, 4], [])
    frame = everything["panels"][0]["runs"]["1"]["frames"]["3"]
    np.testing.assert_allclose(unpack(frame["local"]).reshape(2, 3), [[0.9, 0.2, 0.4], [0.1, 1.0, 0.5]])
    one_seed = slider(report, budget=24)
    assert (one_seed["seeds"], one_seed["rounds"]) == ([0], [1, 2, 3, 4]) and "Only seed 0" in one_seed["notes"][0]
    few = slider(report, budget=12)
    assert (few["seeds"], few["rounds"]) == ([0], [1, 4]) and "Only 2 rounds" in few["notes"][1]


def test_the_matrices_of_a_real_run_are_its_records(runs) -> None:
    report = load_report([runs / "fedavg-0"])
    run = report.runs[0]
    for found in matrices(run, [1, 2, 3, 4]):
        rows = run.pairs[run.pairs["round"] == found.round].set_index(["model", "data"])
        for i, model in enumerate(found.models):
            assert found.data[i] == model
            for k, data in enumerate(found.data):
                pair = rows.loc[(model, data)]
                assert found.forgetting[i, k] == pytest.approx(pair["accuracy_before"] - pair["accuracy_local"])


def test_every_column_of_the_ledger_adds_up(runs) -> None:
    for series in load_report([runs]).series:
        found = ledger(series)
        assert found is not None
        came = found["learned_local"] + found["regained"] + found["taught_by_others"]
        went = found["forgotten_local"] + found["forgotten_known"] + found["forgotten_new"]
        assert found["right_before"] + came - went == pytest.approx(found["right_after"])


def test_a_ledger_that_was_not_recorded_is_none() -> None:
    assert ledger(group([made_up(accuracy=[0.5])]).series[0]) is None
    assert set(FLOWS) >= {"right_before", "regained", "right_after"}


def class_table(forgetting: list[float]) -> dict:
    return {
        "round": [1, 1, 2, 2],
        "class": [0, 1, 0, 1],
        "forgetting": forgetting,
        "accuracy_after": [0.1, 0.2, 0.3, 0.4],
        "learned_local": [1, 2, 3, 4],
        "taught_by_others": [0, 0, 0, 2],
        "forgotten_local": [1, 0, 0, 0],
        "forgotten_aggregation": [0, 0, 0, 4],
        "regained": [0, 2, 0, 0],
    }


def test_classes_are_means_over_rounds_and_seeds() -> None:
    runs = [
        made_up(seed=0, accuracy=[0.5] * 2, tables={"classes": class_table([0.1, 0.2, 0.3, np.nan])}),
        made_up(seed=1, accuracy=[0.5] * 2, tables={"classes": class_table([0.3, 0.4, 0.5, 0.8])}),
    ]
    found = classes(group(runs).series[0])
    assert found is not None
    np.testing.assert_allclose(found.forgetting, [0.3, 0.4])  # (.2 + .4) / 2 and (.2 + .6) / 2
    np.testing.assert_allclose(found.accuracy, [0.2, 0.3])
    np.testing.assert_allclose(found.learned, [2, 4])
    np.testing.assert_allclose(found.forgotten_local, [0.5, 0])
    np.testing.assert_allclose(found.forgotten_aggregation, [0, 2])
    np.testing.assert_allclose(found.regained, [0, 1])
    assert classes(group([made_up(accuracy=[0.5])]).series[0]) is None


def test_the_most_forgotten_client() -> None:
    table = {"round": [1, 1, 2, 2], "client": [3, 4, 3, 4], "forgetting_by_data": [0.1, 0.2, 0.2, np.nan]}
    assert most_forgotten_data(made_up(accuracy=[0.5] * 2, tables={"clients": table})) == (4, pytest.approx(0.2))
    assert most_forgotten_data(made_up(accuracy=[0.5])) is None
