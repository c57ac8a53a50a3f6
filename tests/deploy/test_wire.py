"""The wire format: what is sent arrives, and nothing else gets in."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

pytest.importorskip("flwr", reason='Flower is not installed; pip install "fedkeep[flower]"')

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from deploy.loopback import through_the_wire
from fedkeep.deploy import answers, messages
from fedkeep.deploy.answers import Counts, Greeting
from fedkeep.deploy.encoding import PLAIN, Float16, Int8, Top
from fedkeep.deploy.messages import Expected
from fedkeep.deploy.wire import (
    DTYPES,
    WireError,
    array_of,
    config_of,
    counts,
    keys_of,
    only,
    put,
    spec_of,
    take,
    take_any,
    tensor_of,
    whole,
)
from fedkeep.errors import ConfigError
from fedkeep.grammar import parse
from fedkeep.local_opt import SGD
from fedkeep.method import Facts, Plan, Update
from fedkeep.model import Model
from fedkeep.rounds import Trainer

torch.set_num_threads(1)
TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
ENCODINGS = [PLAIN, Float16(), Int8(), Top(1), Top(30), Top(50, "int8"), Top(100, "float16")]

shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)


@st.composite
def tensors(draw):
    dtype = draw(st.sampled_from(list(DTYPES)))
    shape = draw(shapes)
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 256, (*shape, 8), dtype=np.uint8)  # any bits at all
    plain = np.dtype(DTYPES[dtype])
    raw = values[..., : plain.itemsize].copy()
    if dtype == torch.bool:
        return torch.from_numpy(np.array(raw[..., 0] > 127))
    return torch.from_numpy(raw.view(plain).reshape(shape))


names = st.text(st.characters(blacklist_categories=("Cs",)), min_size=1, max_size=12)


@given(tensors())
def test_a_tensor_arrives_bit_for_bit(tensor):
    arrived = tensor_of(array_of(tensor), (tuple(tensor.shape), tensor.dtype), "it")
    assert arrived.dtype == tensor.dtype and arrived.shape == tensor.shape
    assert arrived.numpy().tobytes() == tensor.numpy().tobytes()


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.dictionaries(names, tensors(), max_size=4), st.text(max_size=10))
def test_a_tree_survives_flowers_serialisation(tree, key):
    tree = {n: torch.where(t.isfinite(), t, 0) if t.is_floating_point() else t for n, t in tree.items()}
    records = RecordDict({"about": messages.about(word=key)})
    put(records, "delta", tree)
    arrived = through_the_wire(Message(records, 7, "train")).content
    found = take(arrived, "delta", spec_of(tree))
    assert found.keys() == tree.keys()
    assert all(torch.equal(found[name], tree[name]) for name in tree)
    assert config_of(arrived)["word"] == key


def test_the_layout_in_memory_does_not_matter():
    image = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    arrived = tensor_of(array_of(image), ((2, 3, 4, 5), torch.float32), "it")
    assert torch.equal(arrived, image) and arrived.is_contiguous()


def test_numbers_are_little_endian():
    assert array_of(torch.tensor([1, 258], dtype=torch.int16)).data == b"\x01\x00\x02\x01"


def test_a_type_that_cannot_be_sent_is_refused_before_sending():
    with pytest.raises(ConfigError, match="bfloat16"):
        array_of(torch.zeros(1, dtype=torch.bfloat16))


GOOD = {"w": torch.arange(6.0).reshape(2, 3), "n": torch.tensor(3)}


def packed(encoding=PLAIN):
    records = RecordDict()
    put(records, "delta", GOOD, encoding)
    return records


def spoiled(change):
    records = packed()
    change(records["delta"])
    return records


def array(**more):
    good = array_of(GOOD["w"])
    return Array(**{"dtype": good.dtype, "shape": good.shape, "stype": good.stype, "data": good.data, **more})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r: r.pop("w"), r'"w" of delta is missing'),
        (lambda r: r.update({"w": array(shape=(3, 2))}), r"shape \(3, 2\), not \(2, 3\)"),
        (lambda r: r.update({"w": array(shape=(2, 10**12))}), "shape"),
        (lambda r: r.update({"w": array(dtype="float64")}), "'float64', not float32"),
        (lambda r: r.update({"w": array(dtype="object")}), "'object'"),
        (lambda r: r.update({"w": array(data=b"1234")}), "4 bytes, not 24"),
        (lambda r: r.update({"w": array(data=b"x" * 10**7)}), "10000000 bytes, not 24"),
        (lambda r: r.update({"w": array(stype="numpy.ndarray")}), "packed as 'numpy.ndarray'"),
        (lambda r: r.update({"w": array_of(torch.full((2, 3), math.nan))}), "NaN"),
        (lambda r: r.update({"w": array_of(torch.full((2, 3), math.inf))}), "infinity"),
        (lambda r: r.update({"more": array()}), "unexpected tensors, the first is 'more'"),
    ],
)
def test_what_is_not_expected_is_refused_and_named(change, words):
    with pytest.raises(WireError, match=words):
        take(spoiled(change), "delta", spec_of(GOOD))


def test_a_record_of_another_kind_is_refused():
    records = RecordDict({"delta": MetricRecord({"w": 1.0})})
    with pytest.raises(WireError, match="not a record of tensors"):
        take(records, "delta", spec_of(GOOD))
    with pytest.raises(WireError, match='"w" of delta is missing'):
        take(RecordDict(), "delta", spec_of(GOOD))


@pytest.mark.parametrize("encoding", ENCODINGS, ids=repr)
def test_every_encoding_sends_exactly_the_records_it_says(encoding):
    records = packed(encoding)
    assert set(records) == keys_of("delta", spec_of(GOOD), encoding)
    found = take(records, "delta", spec_of(GOOD), encoding)
    assert torch.equal(found["n"], GOOD["n"])  # whole numbers are never rounded
    assert found["w"].shape == (2, 3)


@pytest.mark.parametrize("places", [[0, 0], [1, 0], [-1, 2], [0, 600]])
def test_places_that_do_not_fit_are_refused(places):
    records, tree = RecordDict(), {"w": torch.arange(600.0)}
    put(records, "delta", tree, Top(0.3))
    records["delta:places"]["w"] = array_of(torch.tensor(places, dtype=torch.int32))
    with pytest.raises(WireError, match="places must grow"):
        take(records, "delta", spec_of(tree), Top(0.3))


@pytest.mark.parametrize("mask", [0b11100000, 0b00000000, 0b10000010])
def test_masks_that_do_not_fit_are_refused(mask):
    records = packed(Top(30))  # two of six numbers
    records["delta:mask"]["w"] = array_of(torch.tensor([mask], dtype=torch.uint8))
    with pytest.raises(WireError, match="must mark 2 of 6 numbers"):
        take(records, "delta", spec_of(GOOD), Top(30))


def test_a_scale_cannot_smuggle_infinity():
    records = packed(Float16())
    records["delta:scale"]["w"] = array_of(torch.tensor(1e300, dtype=torch.float64))
    with pytest.raises(WireError, match="NaN or infinity"):
        take(records, "delta", spec_of(GOOD), Float16())


def test_other_versions_and_strangers_are_told_apart():
    with pytest.raises(WireError, match="version 99"):
        config_of(RecordDict({"about": ConfigRecord({"wire": 99})}))
    with pytest.raises(WireError, match="does not come from FedKeep"):
        config_of(RecordDict())
    with pytest.raises(WireError, match="unexpected records"):
        only(RecordDict({"a": MetricRecord(), "b": MetricRecord()}), {"a"})


@pytest.mark.parametrize("value", [True, 1.0, "1", None, -1, 11])
def test_whole_numbers_are_whole_and_within_bounds(value):
    with pytest.raises(WireError):
        whole({"n": value}, "n", 0, 10)
    assert whole({"n": 10}, "n", 0, 10) == 10


@pytest.mark.parametrize("value", [[1], [1, 2, 3], [1.0, 2.0], [1, -2], [1, 99], 5, None])
def test_counts_are_counts(value):
    with pytest.raises(WireError):
        counts({"n": value}, "n", 2, 50)
    assert counts({"n": [0, 50]}, "n", 2, 50).tolist() == [0, 50]


# -- messages


def trainer():
    return Trainer.of(Model.of(torch.nn.Linear(2, 2)), parse("fedavg+events"), Plan(SGD(0.1)))


def update(**numbers):
    delta = {"weight": torch.ones(2, 2), "bias": torch.zeros(2)}
    return Update(Facts(0, 10, 1, 1.0, numbers), delta, {}, {})


EXPECTED = Expected(spec_of(update().delta), {}, {}, frozenset({"forgettable"}))


def test_an_update_arrives():
    records = messages.put_update(update(forgettable=3.0), {}, False, "kept")
    found, memory = messages.take_update(records, 0, trainer(), EXPECTED)
    assert memory == "kept" and found.facts.examples == 10 and found.facts.numbers == {"forgettable": 3.0}
    assert found.facts.bytes_up == 4 * 6 + 8 * 3
    assert torch.equal(found.delta["weight"], torch.ones(2, 2))


def test_an_update_that_is_not_finite_is_only_reported():
    broken = Update(Facts(0, 10, 1, 1.0, {}, finite=False), {"weight": torch.full((2, 2), math.nan)})
    records = messages.put_update(broken, {}, False, "new")
    assert set(records) == {"about", "numbers"}
    assert not messages.take_update(records, 0, trainer(), EXPECTED)[0].facts.finite


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({"forgettable": 11.0}, "11.0 forgettable examples of 10"),
        ({"forgettable": -1.0}, "forgettable"),
        ({"forgettable": math.nan}, "not a finite number"),
        ({"other": 1.0}, "nobody asked for"),
    ],
)
def test_numbers_are_checked(numbers, words):
    records = messages.put_update(update(**numbers), {}, False, "new")
    with pytest.raises(WireError, match=words):
        messages.take_update(records, 0, trainer(), EXPECTED)


def test_privacy_keeps_the_number_of_examples():
    records = messages.put_update(update(), {}, True, "new")
    assert records["numbers"]["examples"] == 1


def test_greetings():
    told = Greeting("north", 3, np.array([1, 2]), np.array([0, 1]))
    found = answers.take_greeting(answers.put_greeting(told), 2, False, True)
    assert (found.name, found.examples, found.train.tolist(), found.held_out.tolist()) == ("north", 3, [1, 2], [0, 1])
    assert set(answers.put_greeting(Greeting("north"))["numbers"]) == set()  # privacy: a name and nothing else
    with pytest.raises(WireError, match="count 4 examples"):
        answers.take_greeting(
            answers.put_greeting(Greeting("n", 3, np.array([2, 2]), np.zeros(2, int))), 2, False, True
        )


def test_counts_that_contradict_each_other_are_refused():
    patterns = np.zeros((2, 2, 2, 1), np.int64)
    patterns[1, 0, 1, 0] = 4
    good = Counts(np.array([4]), np.array([4]), np.array([4]), patterns)
    assert answers.take_counts(answers.put_counts(good), 1, 0).patterns.tolist() == patterns.tolist()
    for lie in (
        Counts(np.array([4]), np.array([5])),
        Counts(np.array([4]), np.array([3]), np.array([4]), patterns),
        Counts(np.array([5]), np.array([4]), np.array([4]), patterns),
        Counts(np.array([4]), np.array([4]), np.array([3]), patterns),
        Counts(np.array([4]), np.array([4]), None, patterns),
    ):
        with pytest.raises(WireError):
            answers.take_counts(answers.put_counts(lie), 1, 0)


@pytest.mark.parametrize("scores", [[0.5], [0.5, 1.1], [0.5, -0.1], [0.5, math.nan], [0.1, 0.2, 0.3]])
def test_scores_are_accuracies_one_for_each_model(scores):
    with pytest.raises(WireError):
        answers.take_scores(answers.put_scores(scores), 2)


# -- fuzz


values = st.one_of(st.integers(-(2**62), 2**62), st.floats(), st.lists(st.integers(-5, 5), max_size=5))
configs = st.one_of(st.text(max_size=8), st.booleans(), st.integers(-3, 3), st.binary(max_size=8))
arrays = st.builds(
    lambda dtype, shape, stype, data: Array(dtype, shape, stype, data),
    st.sampled_from(["float32", "int64", "object", "", "float16", "uint8"]),
    st.lists(st.integers(-(10**15), 10**15), max_size=3).map(tuple),
    st.sampled_from(["fedkeep.raw", "numpy.ndarray", ""]),
    st.binary(max_size=40),
)
keys = st.sampled_from(
    ["about", "numbers", "measured", "delta", "buffers", "counts", "scores", "delta:values", "slots/a/b", "w", "weight"]
)
record = st.one_of(
    st.dictionaries(keys, values, max_size=4).map(MetricRecord),
    st.dictionaries(st.sampled_from(["wire", "finite", "memory", "name"]), configs, max_size=4).map(ConfigRecord),
    st.dictionaries(keys, arrays, max_size=4).map(ArrayRecord),
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(keys, record, max_size=6), st.booleans())
@example({}, True)
def test_any_reply_is_read_or_refused_and_nothing_else(content, polite):
    content = dict(content)
    if polite:
        content["about"] = messages.about(finite=True, memory="new", name="x")
    readers = [
        lambda r: messages.take_update(r, 0, trainer(), EXPECTED),
        lambda r: answers.take_greeting(r, 2, False, True),
        lambda r: answers.take_scores(r, 2),
        lambda r: answers.take_counts(r, 2, 1),
        lambda r: take_any(r, "delta"),
    ]
    for read in readers:
        try:
            read(RecordDict(copy.copy(content)))
        except WireError as refused:
            assert str(refused)
