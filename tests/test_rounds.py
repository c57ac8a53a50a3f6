"""One round: identities to the last bit, the order of sums, clients that are lost, buffers, frozen layers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedkeep import rounds
from fedkeep.aggregation import WeightedMean
from fedkeep.bundles import collect, groups, merge
from fedkeep.errors import ConfigError, RunError
from fedkeep.grammar import parse
from fedkeep.local.step import EagerStep
from fedkeep.local.traced import TracedStep
from fedkeep.local_opt import SGD, Adam
from fedkeep.losses import ce
from fedkeep.method import Facts, Finish, Mechanism, Method, Plan, Update
from fedkeep.model import Model, mean_buffers
from fedkeep.rng import stream
from fedkeep.rounds import ClientData, NoUsableUpdate, ServerState, Trainer, server_round
from fedkeep.server_opt import ServerSGD
from fedkeep.tree import finite
from toys import Bowl, HalfSquare, Network, Normed, as_numpy, assert_same_bits, assert_trees, blobs, bowl, play

CLIENTS = [blobs(9, [0, 1], 1), blobs(5, [1, 2], 2), blobs(1, [2], 3), blobs(12, [0, 1, 2], 4)]
COHORTS = [[0, 1], [1, 2, 3], [0, 3]]
PLAN = Plan(SGD(0.1, momentum=0.5), batch_size=4, epochs=2)


# ---------------------------------------------------------------- identities


@pytest.mark.parametrize("neutral", ["fedprox(mu=0)", "fedavg+ewc(lam=0)", "fedavg+rwalk(lam=0)", "fedavg+events"])
@pytest.mark.parametrize("loss", ["", "+wsm"])
def test_neutral_options_are_fedavg_bit_for_bit(neutral, loss):
    plain = play("fedavg" + loss, Normed(), CLIENTS, COHORTS, PLAN)
    other = play(neutral + loss, Normed(), CLIENTS, COHORTS, PLAN)
    for a, b in zip(plain.states, other.states, strict=True):
        assert_same_bits(a.params, b.params)
        assert_same_bits(a.buffers, b.buffers)


def test_a_pull_is_not_neutral():
    plain = play("fedavg", Normed(), CLIENTS, COHORTS, PLAN)
    for name in ("fedprox(mu=0.1)", "fedavg+ewc(lam=1)", "scaffold", "fedavg+tce", "fednova", "importance(lam=0)"):
        other = play(name, Normed(), CLIENTS, COHORTS, PLAN)
        assert any(not torch.equal(other.last.params[key], tensor) for key, tensor in plain.last.params.items()), name


def test_corrections_of_two_mechanisms_add_up():
    clients = [bowl([1.0], [4.0], 3), bowl([2.0], [-1.0], 2)]

    def ends(*names):
        parts = tuple(part for name in names for part in parse(name).mechanisms)
        method = Method(HalfSquare(), WeightedMean("uniform"), ServerSGD(), parts)
        run = play(method, Bowl(5.0), clients, [[0, 1]] * 2, Plan(SGD(0.1), batch_size=1))
        return run.outcomes[1][0].params["w"].item(), run.states[1]

    both, state = ends("fedprox(mu=0.7)", "scaffold")
    w = start = float(state.params["w"])
    server = float(state.slots["scaffold"]["c"]["w"])
    # the client's own variate from round 1, from 5: three steps with gradient (w - 4) + 0.7 (w - 5)
    moved = 5.0
    for _ in range(3):
        moved -= 0.1 * ((moved - 4.0) + 0.7 * (moved - 5.0))
    own = (5.0 - moved) / 0.3
    for _ in range(3):
        w -= 0.1 * ((w - 4.0) + 0.7 * (w - start) + server - own)
    assert both == pytest.approx(w, rel=1e-12)


def test_nothing_given_is_written_into():
    """A client's round leaves the broadcast, the memory and the data as they were."""
    for name in ("scaffold", "importance(lam=1)", "fedavg+rwalk(lam=1)", "fedwavg(alpha=0.5)"):
        run = play(name, Normed(), CLIENTS, COHORTS, PLAN)
        before = {key: tensor.clone() for key, tensor in run.last.params.items()}
        buffers = {key: tensor.clone() for key, tensor in run.last.buffers.items()}
        trainer = Trainer.of(Model.of(Normed()), parse(name), PLAN)
        broadcast = rounds.broadcast_of(run.last)
        results = [
            rounds.client_round(trainer, broadcast, CLIENTS[0], run.memories[-1][0], 0, stream(0, "client", 4, 0))
            for _ in range(2)
        ]
        assert_same_bits(run.last.params, before)
        assert_same_bits(run.last.buffers, buffers)
        assert_same_bits(results[0].params, results[1].params)
        assert_same_bits(results[0].update.delta, results[1].update.delta)


def test_an_update_is_new_minus_old_with_its_facts():
    run = play("fedprox(mu=0.3)", Normed(), CLIENTS, [[0]], PLAN)
    outcome = run.outcomes[0][0]
    assert_trees(
        outcome.update.delta,
        {name: (tensor - run.states[0].params[name]).numpy() for name, tensor in outcome.params.items()},
        rtol=0,
        atol=0,
    )
    facts = outcome.update.facts
    assert (facts.client, facts.examples, facts.steps, facts.finite) == (0, 9, 6, True)
    assert facts.effort == SGD(0.1, momentum=0.5).effort(6, 0.3)
    floats = 4 * 6 + 6 + 6 + 6 + 6 * 3 + 3  # weights and biases of the three layers
    assert facts.bytes_up == 8 * (floats + 6 + 6 + 1) + 16  # and two buffers of six, one counter, two numbers


def test_dropout_is_keyed_as_all_else():
    class Dropping(Network):
        def forward(self, x):
            return self.output(nn.functional.dropout(torch.relu(self.hidden(x)), 0.5, self.training))

    first = play("fedavg", Dropping(), CLIENTS, COHORTS, PLAN, seed=1)
    torch.manual_seed(123)
    again = play("fedavg", Dropping(), CLIENTS, COHORTS, PLAN, seed=1)
    assert_same_bits(first.last.params, again.last.params)
    other = play("fedavg", Dropping(), CLIENTS, COHORTS, PLAN, seed=2)
    assert not torch.equal(other.last.params["output.bias"], first.last.params["output.bias"])


# ---------------------------------------------------------------- the order of sums


def updates(count: int, lost: tuple[int, ...] = ()) -> list[Update]:
    """Single-precision updates of very different size, so that the order of sums shows."""
    generator = np.random.default_rng(count)
    made = []
    for k in range(count):
        tensor = torch.from_numpy(generator.normal(size=5) * 10.0 ** generator.integers(-4, 5)).float()
        buffers = {"mean": torch.from_numpy(generator.normal(size=2)).float(), "count": torch.tensor(k)}
        uploads = {"scaffold": {"dc": {"w": tensor.sin()}}}
        made.append(Update(Facts(k, k + 1, 1, 1.0, finite=k not in lost), {"w": tensor}, buffers, uploads))
    return made


@pytest.mark.parametrize("name", ["scaffold", "fednova+scaffold", "scaffold(weights=examples)"])
@given(count=st.integers(1, 40), block=st.sampled_from([1, 2, 4, 8, 16]), lost=st.sets(st.integers(0, 39), max_size=5))
@settings(deadline=None, max_examples=40)
def test_the_result_does_not_depend_on_how_the_cohort_is_cut(name, count, block, lost):
    """Whoever adds up an aligned block of a power of two: the same bits."""
    method = parse(name)
    all_of_them = updates(count, tuple(lost))
    whole = collect(method, all_of_them)
    blocks = [collect(method, all_of_them[first : first + block]) for first in range(0, count, block)]
    cut = merge(method, blocks)
    assert [fact.client for fact in cut.facts] == [fact.client for fact in whole.facts] == list(range(count))
    assert_same_bits(cut.total, whole.total)
    assert_same_bits(cut.buffers, whole.buffers)
    if whole.usable:
        assert_same_bits(cut.uploads["scaffold"]["dc"], whole.uploads["scaffold"]["dc"])


class Souvenir(Mechanism):
    """Keeps the local model's own tensors and sends them, or does neither."""

    name = "souvenir"

    def __init__(self, wanted: bool):
        self.wanted = wanted

    def client_end(self, ctx, result):
        return Finish(keep={"model": result.params}, upload={"model": result.params}) if self.wanted else Finish()


@pytest.mark.parametrize("make_step", [EagerStep, TracedStep])
@pytest.mark.parametrize("wanted", [True, False])
def test_an_update_in_the_place_of_the_model_spoils_nothing(make_step, wanted):
    method = Method(ce, WeightedMean("uniform"), ServerSGD(), (Souvenir(wanted),))
    trainer = Trainer.of(Model.of(Network()), method, PLAN, make_step)
    sent = rounds.broadcast_of(rounds.begin(method, *trainer.model.initial()))
    before = {name: tensor.clone() for name, tensor in sent.params.items()}

    def outcome(**how):
        return rounds.client_round(trainer, sent, CLIENTS[0], None, 0, stream(0, "client"), **how)

    kept, spent = outcome(), outcome(keep_model=False)
    assert_same_bits(spent.update.delta, kept.update.delta)
    assert_same_bits(sent.params, before)
    if wanted:
        assert_same_bits(spent.memory["souvenir"]["model"], kept.params)
        assert_same_bits(spent.update.uploads["souvenir"]["model"], kept.params)
    else:
        assert spent.params == {}


@given(count=st.integers(1, 300), workers=st.integers(1, 9))
@settings(deadline=None, max_examples=100)
def test_groups_cover_the_cohort_in_aligned_blocks_of_a_power_of_two(count, workers):
    found = groups(count, workers)
    assert [position for group in found for position in group] == list(range(count))
    sizes = [len(group) for group in found]
    assert all(size & (size - 1) == 0 and group.start % size == 0 for group, size in zip(found, sizes, strict=True))
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] <= max(1, count / workers)  # nobody takes more than a fair share at once
    assert sizes[-1] == 1 and len(found) >= min(count, workers)  # and nobody stands idle for long


@pytest.mark.parametrize("name", ["scaffold", "fednova+scaffold", "fedavg+scaffold"])
def test_sums_are_sums(name):
    """The tree of partial sums against one plain sum in double precision."""
    method, some = parse(name), updates(13, lost=(3, 12))
    bundle = collect(method, some)
    usable = [update for update in some if update.facts.finite]
    total = sum(method.aggregate.contribution(update)["w"].double() for update in usable)
    np.testing.assert_allclose(bundle.total["w"].numpy(), total.numpy(), rtol=1e-5, atol=1e-3)
    sent = sum(update.uploads["scaffold"]["dc"]["w"].double() for update in usable)
    np.testing.assert_allclose(bundle.uploads["scaffold"]["dc"]["w"].numpy(), sent.numpy(), atol=1e-5)


@pytest.mark.parametrize(
    "name", ["scaffold", "fednova", "fedwavg(alpha=0.5)", "importance(lam=1)", "fedavg+rwalk(lam=1)"]
)
def test_permuting_the_cohort_changes_nothing_but_rounding(name):
    forwards = play(name, Normed(), CLIENTS, COHORTS, PLAN)
    backwards = play(name, Normed(), CLIENTS, [cohort[::-1] for cohort in COHORTS], PLAN)
    assert_trees(backwards.last.params, as_numpy(forwards.last.params), rtol=1e-9, atol=1e-12)
    assert_trees(backwards.last.buffers, as_numpy(forwards.last.buffers), rtol=1e-9, atol=1e-12)


# ---------------------------------------------------------------- clients that are lost


def poisoned() -> ClientData:
    """A client whose inputs are damaged."""
    x = torch.full((3, 4), torch.nan, dtype=torch.float64)
    return ClientData(x, torch.tensor([0, 1, 2]), torch.tensor([1, 1, 1]))


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fednova", "fedwavg(alpha=0.5)", "importance(lam=1)"])
def test_a_client_that_is_not_finite_is_left_out(name):
    clients = [CLIENTS[0], CLIENTS[3], poisoned()]
    plan = Plan(SGD(0.1), batch_size=4, epochs=2)
    run = play(name, Normed(), clients, [[0, 2, 1], [2, 0], [1, 2]], plan)
    without = play(name, Normed(), clients, [[0, 1], [0], [1]], plan)
    assert [[f.update.facts.finite for f in outcomes.values()] for outcomes in run.outcomes] == [
        [True, False, True],
        [False, True],
        [True, False],
    ]
    assert_same_bits(run.last.params, without.last.params)
    assert_same_bits(run.last.buffers, without.last.buffers)
    assert finite(run.last.params) and finite(run.last.buffers)
    for a, b in zip(run.states, without.states, strict=True):
        for mechanism, slots in a.slots.items():
            for slot in slots:
                assert_same_bits(slots[slot], b.slots[mechanism][slot])


def test_a_lost_client_keeps_the_memory_it_had():
    """It trained twice well, then its data is damaged: what it keeps is what it kept."""
    run = play("scaffold+events", Network(), CLIENTS, [[0, 1], [0, 1]], PLAN)
    memory = run.memories[-1][0]
    trainer = Trainer.of(Model.of(Network()), parse("scaffold+events"), PLAN)
    outcome = rounds.client_round(
        trainer, rounds.broadcast_of(run.last), poisoned(), memory, 0, stream(0, "client", 3, 0)
    )
    assert not outcome.update.facts.finite
    assert outcome.memory is memory
    fresh = rounds.client_round(trainer, rounds.broadcast_of(run.last), poisoned(), None, 0, stream(0, "client", 3, 0))
    assert not any(tensor.any() for tensor in fresh.memory["scaffold"]["c"].values())
    assert fresh.memory["events"] == {}


@pytest.mark.parametrize("name", ["fedavg", "importance(lam=1)"])
def test_a_round_without_a_single_usable_update_stops(name):
    with pytest.raises(NoUsableUpdate, match=r"round 1: none of the 2 updates was finite.*Lower the learning rate"):
        play(name, Network(), [poisoned(), poisoned()], [[0, 1]], Plan(SGD(0.1)))
    assert issubclass(NoUsableUpdate, RunError)


@pytest.mark.parametrize("where", ["delta", "buffers", "uploads"])
def test_one_bad_number_anywhere_makes_an_update_unusable(where):
    class Counting(Normed):
        def __init__(self):
            super().__init__()
            self.register_buffer("largest", torch.zeros(()))

        def forward(self, x):
            if where == "buffers" and self.training:
                self.largest.fill_(torch.inf)
            return super().forward(x)

    module = Counting()
    method = parse("importance(lam=1)")
    plan = Plan(SGD(1e300 if where == "delta" else 1e-3), batch_size=4)
    trainer = Trainer.of(Model.of(module), method, plan)
    state = rounds.begin(method, *trainer.model.initial())
    if where == "uploads":  # the Fisher it blends in holds a nan
        nan = {key: torch.full_like(tensor, torch.nan) for key, tensor in state.params.items()}
        state = ServerState(state.params, state.buffers, {"ewc": {"importance": nan}}, {}, 1)
        trainer = Trainer.of(trainer.model, parse("importance(lam=0)"), plan)
    outcome = rounds.client_round(trainer, rounds.broadcast_of(state), CLIENTS[0], None, 0, stream(0, "client"))
    assert not outcome.update.facts.finite


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, -2.0], True),
        ([1.0, float("nan")], False),
        ([float("inf"), float("-inf")], False),
        ([float("inf"), 0.0], False),
        ([3e38, 3e38], True),  # the sum overflows, the numbers do not
        ([], True),
    ],
)
def test_finite(values, expected):
    assert finite({"a": torch.ones(2), "b": torch.tensor(values)}) is expected


# ---------------------------------------------------------------- buffers and frozen layers


@pytest.mark.parametrize(("name", "by_examples"), [("fedavg", True), ("scaffold", False), ("importance(lam=1)", True)])
def test_batch_norm_buffers_are_the_mean_of_the_clients(name, by_examples):
    run = play(name, Normed(), CLIENTS, [[0, 1, 2]] * 2, PLAN)
    examples = np.array([9, 5, 1]) if by_examples else np.ones(3)
    shares = examples / examples.sum()
    for number in range(2):
        own = [run.outcomes[number][k].buffers for k in range(3)]
        for key in ("norm.running_mean", "norm.running_var"):
            expected = sum(share * one[key].numpy() for share, one in zip(shares, own, strict=True))
            np.testing.assert_allclose(run.states[number + 1].buffers[key].numpy(), expected, rtol=1e-12)
    # steps of the clients in each round: 2 * (3, 2, 1); the counter is rounded
    assert int(run.states[1].buffers["norm.num_batches_tracked"]) == round(float(shares @ [6, 4, 2]))
    assert run.last.buffers["norm.num_batches_tracked"].dtype == torch.int64


def test_running_statistics_are_those_of_batch_norm():
    """One client, one step of all its examples: momentum 0.1 towards the batch's mean and unbiased variance."""
    run = play("fedavg", Normed(), [CLIENTS[3]], [[0]], Plan(SGD(0.1), batch_size=99))
    w = as_numpy(run.states[0].params)
    entering = CLIENTS[3].x.numpy() @ w["hidden.weight"].T + w["hidden.bias"]
    np.testing.assert_allclose(run.last.buffers["norm.running_mean"].numpy(), 0.1 * entering.mean(0))
    np.testing.assert_allclose(run.last.buffers["norm.running_var"].numpy(), 0.9 + 0.1 * entering.var(0, ddof=1))


def test_buffers_worked_by_hand():
    method = Method(ce, WeightedMean(), ServerSGD())
    some = [
        Update(Facts(0, 1, 1, 1.0), {"w": torch.zeros(1)}, {"mean": torch.tensor([4.0]), "count": torch.tensor(3)}),
        Update(Facts(1, 3, 1, 1.0), {"w": torch.zeros(1)}, {"mean": torch.tensor([8.0]), "count": torch.tensor(5)}),
    ]
    state = ServerState({"w": torch.zeros(1)}, {"mean": torch.zeros(1), "count": torch.tensor(0)}, {}, {})
    new = server_round(method, state, collect(method, some), 2)
    assert new.buffers["mean"].tolist() == [7.0]  # 4/4 + 8 * 3/4
    assert new.buffers["mean"].dtype == torch.float32
    assert int(new.buffers["count"]) == 4  # 4.5 rounds to even
    assert int(mean_buffers([u.buffers for u in some], [0.1, 0.9])["count"]) == 5


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "importance(lam=1)", "fedprox(mu=1)", "fednova@adam(lr=0.1)"])
def test_a_frozen_classifier_never_changes_and_never_travels(name):
    module = Normed()
    before = module.classifier.weight.detach().clone()
    run = play(name, module, CLIENTS, COHORTS, PLAN, frozen=["classifier"])
    free = play(name, Normed(), CLIENTS, COHORTS, PLAN)
    for state, outcomes in zip(run.states[1:], run.outcomes, strict=True):
        assert not any(key.startswith("classifier") for key in state.params)
        for outcome in outcomes.values():
            travels = [outcome.update.delta, *(t for slots in outcome.update.uploads.values() for t in slots.values())]
            assert not any(key.startswith("classifier") for tree in travels for key in tree)
    assert torch.equal(module.classifier.weight, before)
    saved = run.outcomes[0][0].update.facts.bytes_up, free.outcomes[0][0].update.facts.bytes_up
    trees = 2 if name in ("scaffold", "importance(lam=1)") else 1
    assert saved[1] - saved[0] == trees * 8 * (6 * 3 + 3)
    sent = rounds.broadcast_of(run.states[0]).nbytes, rounds.broadcast_of(free.states[0]).nbytes
    assert sent[1] - sent[0] == (2 if name == "scaffold" else 1) * 8 * (6 * 3 + 3)


def test_the_frozen_classifier_takes_part_in_the_forward_pass():
    module = Normed()
    model = Model.of(module, ["classifier"])
    x = CLIENTS[0].x
    with torch.no_grad():
        expected = Normed().eval()(x)
        module.classifier.weight.zero_()  # the model has a copy of its own
        logits, _ = model.forward(*model.initial(), x, train=False)
    np.testing.assert_allclose(logits.numpy(), expected.numpy())


def test_freezing_nonsense_is_refused():
    with pytest.raises(ConfigError, match='cannot freeze "clasifier": the model has no such layer; it has hidden'):
        Model.of(Normed(), ["clasifier"])
    with pytest.raises(ConfigError, match="leaves nothing to train"):
        Model.of(Normed(), ["hidden", "norm", "classifier"])


def test_adam_starts_afresh_in_every_round():
    """The optimiser's state is the client's for one round only: two rounds from one model are equal."""
    plan = Plan(Adam(0.05), batch_size=4)
    run = play("fedavg", Network(), CLIENTS, [[0]], plan)
    trainer = Trainer.of(Model.of(Network()), parse("fedavg"), plan)
    again = rounds.client_round(
        trainer, rounds.broadcast_of(run.states[0]), CLIENTS[0], run.memories[-1][0], 0, stream(0, "client", 1, 0)
    )
    assert_same_bits(again.params, run.outcomes[0][0].params)
