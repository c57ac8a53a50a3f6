"""FedWAvg's weights against the twin; the whole algorithm is run in tests/mechanisms/test_forgetting_events.py."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkeep.aggregation import FedWAvg, fedwavg_weights
from fedkeep.bundles import collect
from fedkeep.errors import ConfigError
from fedkeep.grammar import parse
from fedkeep.local_opt import SGD
from fedkeep.losses import ce
from fedkeep.method import Method, Plan
from fedkeep.rounds import ServerState, check, server_round
from fedkeep.server_opt import ServerSGD
from reference import fedwavg
from toys import update

COUNTS = st.lists(st.one_of(st.none(), st.integers(0, 500)), min_size=1, max_size=8)


@given(counts=COUNTS, alpha=st.floats(0, 0.99))
@settings(deadline=None, max_examples=80)
def test_weights_are_the_twins_and_sum_to_the_number_of_clients(counts, alpha):
    found = fedwavg_weights([np.nan if count is None else count for count in counts], alpha)
    np.testing.assert_allclose(found, fedwavg.averaging_weights(counts, alpha), rtol=1e-12)
    assert found.sum() == pytest.approx(len(counts))
    assert (found >= 1 - alpha - 1e-12).all()


@given(counts=COUNTS)
@settings(deadline=None, max_examples=30)
def test_alpha_zero_and_nothing_forgotten_are_the_uniform_average(counts):
    known = [np.nan if count is None else count for count in counts]
    np.testing.assert_array_equal(fedwavg_weights(known, 0.0), 1.0)
    np.testing.assert_array_equal(fedwavg_weights([0.0 * count for count in known], 0.5), 1.0)


def test_numbers_worked_by_hand():
    # N = 4, sum F = 4: 0.7 + 0.3 * 4 * (2, 1, 1, 0) / 4
    np.testing.assert_allclose(fedwavg_weights([2, 1, 1, 0], 0.3), [1.3, 1.0, 1.0, 0.7])
    # the unknown one counts as the mean of 3 and 1: sum F = 6, 0.5 + 0.5 * 3 * (3, 2, 1) / 6
    np.testing.assert_allclose(fedwavg_weights([3, np.nan, 1], 0.5), [1.25, 1.0, 0.75])


def test_parameters_and_buffers_take_the_same_weights_whatever_the_examples():
    method = Method(ce, FedWAvg(0.5), ServerSGD())
    updates = [
        update(0, 1000, numbers={"forgettable": 3.0}, buffers={"mean": torch.tensor([4.0])}, w=[8.0]),
        update(1, 1, numbers={"forgettable": 1.0}, buffers={"mean": torch.tensor([0.0])}, w=[0.0]),
    ]
    state = ServerState({"w": torch.ones(1, dtype=torch.float64)}, {"mean": torch.zeros(1)}, {}, {})
    new = server_round(method, state, collect(method, updates), 5)
    # W = 0.5 + 0.5 * 2 * 3/4 = 1.25, so client 0 has the share 0.625
    assert new.params["w"].tolist() == [1 + 0.625 * 8]
    assert new.buffers["mean"].tolist() == [0.625 * 4]


@pytest.mark.parametrize("alpha", [-0.1, 1.0, float("nan")])
def test_nonsense_is_refused(alpha):
    with pytest.raises(ConfigError, match=r"choose it in \[0, 1\)"):
        FedWAvg(alpha)


def test_it_needs_somebody_to_count():
    method = Method(ce, FedWAvg(0.5), ServerSGD())
    with pytest.raises(ConfigError, match="fedwavg needs clients to upload forgettable"):
        check(method, Plan(SGD(0.1)))
    check(parse("fedwavg(alpha=0.5)"), Plan(SGD(0.1)))
