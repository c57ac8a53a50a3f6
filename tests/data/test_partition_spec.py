"""The names of partitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkeep.data import partition
from fedkeep.data.partition import PartitionSpec, parse
from fedkeep.errors import ConfigError, DataError

LABELS = np.repeat(np.arange(10), 60)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("iid", "iid"),
        (" iid ( ) ", "iid"),
        ("natural", "natural"),
        ("dirichlet(alpha=0.10)", "dirichlet(alpha=0.1)"),
        ("dirichlet( alpha = 1e-3 )", "dirichlet(alpha=0.001)"),
        ("shards", "shards(shards_per_client=2)"),
        ("shards(shards_per_client=5)", "shards(shards_per_client=5)"),
        ("label_clusters(sizes=2:7, classes_per_cluster=2)", "label_clusters(classes_per_cluster=2, sizes=2:7)"),
        ("label_ratios(samples=166,ratios=two-majors)", "label_ratios(ratios=two-majors, samples=166)"),
        ("quantity_skew(alpha=100)", "quantity_skew(alpha=100)"),
    ],
)
def test_canonical_text_reads_back(text, canonical):
    assert str(parse(text)) == canonical
    assert parse(canonical) == parse(text)
    assert hash(parse(canonical)) == hash(parse(text))


@given(st.floats(1e-300, 1e300))
def test_any_alpha_survives_the_text(alpha):
    spec = PartitionSpec("dirichlet", (("alpha", alpha),))
    assert parse(str(spec)) == spec
    assert dict(parse(str(spec)).options)["alpha"] == alpha


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dirichlet", "alpha is missing; write dirichlet"),
        ("dirichlet(alpha=0)", "alpha=0.0"),
        ("dirichlet(alpha=-1)", "alpha=-1.0"),
        ("dirichlet(alpha=nan)", "alpha=nan"),
        ("dirichlet(alpha=x)", "alpha='x'"),
        ("dirichlet(alpa=1)", 'unknown option "alpa": did you mean "alpha"'),
        ("dirichlet(alpha=1, alpha=2)", "given twice"),
        ("dirichlet(alpha)", "not of the form"),
        ("dirichlet(alpha=)", "not of the form"),
        ("dirichlet(alpha=1", "not of the form"),
        ("dirichlet alpha=1", "not of the form"),
        ("", "not of the form"),
        ("dirichlett(alpha=1)", 'unknown partition "dirichlett": did you mean "dirichlet"'),
        ("shards(shards_per_client=0)", "shards_per_client=0"),
        ("shards(shards_per_client=1.5)", "shards_per_client=1.5"),
        ("label_clusters", "sizes is missing"),
        ("label_clusters(sizes=2-7)", "sizes='2-7'"),
        ("label_ratios(samples=10)", "ratios is missing"),
        ("label_ratios(ratios=one-mayor)", 'did you mean "one-major"'),
        ("iid(alpha=1)", 'write just "iid"'),
    ],
)
def test_nonsense_is_refused_when_read(text, message):
    with pytest.raises(ConfigError, match=message):
        parse(text)


def test_with_option():
    spec = parse("label_clusters(sizes=2:7)")
    assert spec.with_option("samples", 12) == parse("label_clusters(sizes=2:7, samples=12)")
    assert spec.with_option("sizes", "3:4") == parse("label_clusters(sizes=3:4)")
    assert spec == parse("label_clusters(sizes=2:7)")
    with pytest.raises(ConfigError, match="sample_count"):
        spec.with_option("sample_count", 3)


@pytest.mark.parametrize(
    ("text", "clients", "direct"),
    [
        ("dirichlet(alpha=0.3)", 7, lambda: partition.dirichlet(LABELS, 7, 0.3, seed=4)),
        ("shards(shards_per_client=3)", 7, lambda: partition.shards(LABELS, 7, 3, seed=4)),
        ("label_clusters(sizes=2:3, samples=9)", 5, lambda: partition.label_clusters(LABELS, [2, 3], None, 9, seed=4)),
        ("label_clusters(sizes=2:3)", None, lambda: partition.label_clusters(LABELS, [2, 3], seed=4)),
        ("label_ratios(ratios=one-major)", 7, lambda: partition.label_ratios(LABELS, "one-major", 7, seed=4)),
        ("iid", 7, lambda: partition.iid(LABELS, 7, seed=4)),
        ("quantity_skew(alpha=2)", 7, lambda: partition.quantity_skew(LABELS, 7, 2.0, seed=4)),
        ("natural", 3, lambda: partition.natural(LABELS // 2, 3)),
    ],
)
def test_build_is_the_maker(text, clients, direct):
    built, made = parse(text).build(LABELS, clients, 4, groups=LABELS // 2), direct()
    assert np.array_equal(built.index, made.index)
    assert np.array_equal(built.offsets, made.offsets)


def test_build_refuses_what_is_missing_or_contradicts():
    with pytest.raises(DataError, match="does not say which client"):
        parse("natural").build(LABELS, 3, 0)
    with pytest.raises(ConfigError, match="sum to 9 clients, but clients=10"):
        parse("label_clusters(sizes=2:7)").build(LABELS, 10, 0)
    with pytest.raises(ConfigError, match="number of clients is missing"):
        parse("iid").build(LABELS, None, 0)
