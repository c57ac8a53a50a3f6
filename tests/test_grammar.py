"""Method names and methods: what is written is what is meant, and reads back."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedkeep import aggregation, losses, mechanisms, server_opt
from fedkeep.calls import format_call, format_value, parse_call, parse_value
from fedkeep.errors import ConfigError
from fedkeep.grammar import DESCRIBES, SERVER, TERMS, name_of, parse
from fedkeep.local_opt import SGD
from fedkeep.method import Method, Plan
from fedkeep.rounds import check

POSITIVE = st.floats(1e-6, 1e6)
UNIT = st.floats(0, 1, exclude_max=True)


def call(name: str, **options) -> st.SearchStrategy[str]:
    """The text of a term, each option there or left at its default."""
    return st.fixed_dictionaries({}, optional=options).map(lambda chosen: format_call(name, chosen))


def needs(name: str, required: dict, **options) -> st.SearchStrategy[str]:
    return st.fixed_dictionaries(required, optional=options).map(lambda chosen: format_call(name, chosen))


WEIGHTS = {"weights": st.sampled_from(["examples", "uniform"])}
EWC = {"gamma": UNIT, "explicit": st.booleans()}
BASES = st.one_of(
    call("fedavg", **WEIGHTS),
    st.just("fednova"),
    needs("fedwavg", {"alpha": UNIT}, event_period=st.integers(1, 9)),
    needs(
        "fedwagg",
        {"clusters": st.integers(1, 9)},
        evaluators=st.one_of(st.none(), st.integers(1, 5)),
        features=st.sampled_from(["weights", "update"]),
        balanced=st.booleans(),
        seed=st.integers(0, 99),
    ),
    needs("importance", {"lam": POSITIVE}, walk=st.booleans(), **EWC),
    st.just(""),
)
EXTRAS = {
    "fedprox": needs("fedprox", {"mu": POSITIVE}),
    "scaffold": call("scaffold", **WEIGHTS),
    "ewc": needs("ewc", {"lam": POSITIVE}, **EWC),
    "rwalk": needs("rwalk", {"lam": POSITIVE}, eps=POSITIVE, **EWC),
    "events": call("events", event_period=st.integers(1, 9)),
}
LOSS = st.one_of(
    st.sampled_from(["", "ce", "tce", "wsm"]),
    needs("fedrs", {"alpha": st.floats(0, 1)}),
    needs("fedlc", {"tau": st.floats(0, 100)}),
)
SERVERS = st.one_of(
    st.just(""),
    call("sgd", lr=POSITIVE),
    call("momentum", lr=POSITIVE, beta=UNIT),
    *(needs(name, {"lr": POSITIVE}, beta1=UNIT, beta2=UNIT, tau=POSITIVE) for name in ("adam", "yogi")),
    needs("adagrad", {"lr": POSITIVE}, beta1=UNIT, tau=POSITIVE),
)


@st.composite
def written(draw) -> str:
    """A method that the grammar takes, its terms in any order."""
    base = draw(BASES)
    used = {"fedwavg": {"events"}, "importance": {"ewc", "rwalk"}}.get(base.partition("(")[0], set())
    chosen = draw(st.sets(st.sampled_from(sorted(set(EXTRAS) - used)), max_size=3))
    if {"ewc", "rwalk"} <= chosen:
        chosen.discard("ewc")
    terms = [term for term in [base, *(draw(EXTRAS[name]) for name in sorted(chosen)), draw(LOSS)] if term]
    server = draw(SERVERS)
    text = "+".join(draw(st.permutations(terms or ["fedavg"])))
    return text + (f"@{server}" if server else "")


@given(text=written())
@settings(deadline=None, max_examples=300)
def test_the_name_of_a_method_reads_back_as_the_same_method(text):
    method = parse(text)
    name = name_of(method)
    assert parse(name) == method
    assert name_of(parse(name)) == name


@given(text=written(), order=st.randoms())
@settings(deadline=None, max_examples=100)
def test_spaces_and_the_order_of_losses_and_mechanisms_do_not_matter(text, order):
    front, at, server = text.partition("@")
    spaced = re.sub(r"([(),=+@])", r" \1 ", front.replace("e+", "e#")).replace("e#", "e+") + at + server
    assert parse(spaced) == parse(text)
    terms = re.sub(r"\+(?![^(]*\))", "|", front).split("|")  # plus signs outside brackets
    if sum(term.startswith(("fedavg", "scaffold")) for term in terms) < 2:  # two bring a default; the last one decides
        order.shuffle(terms)
        assert parse("+".join(terms) + at + server) == parse(text)


EXAMPLES = {
    "fedavg": Method(losses.ce, aggregation.WeightedMean(), server_opt.ServerSGD()),
    "fedavg+wsm": Method(losses.wsm, aggregation.WeightedMean(), server_opt.ServerSGD()),
    "fedprox(mu=0.01)+tce": Method(
        losses.tce, aggregation.WeightedMean(), server_opt.ServerSGD(), (mechanisms.Proximal(0.01),)
    ),
    "scaffold+wsm": Method(
        losses.wsm, aggregation.WeightedMean("uniform"), server_opt.ServerSGD(), (mechanisms.Scaffold(),)
    ),
    "fedwavg(alpha=0.3)+wsm": Method(
        losses.wsm, aggregation.FedWAvg(0.3), server_opt.ServerSGD(), (mechanisms.ForgettingEvents(),)
    ),
    "fedwagg(clusters=3)": Method(losses.ce, aggregation.FedWAgg(3), server_opt.ServerSGD()),
    "importance(lam=100000)": Method(
        losses.ce, aggregation.Importance(), server_opt.ServerSGD(), (mechanisms.EWC(1e5),)
    ),
    "fedavg+ewc(lam=10)": Method(
        losses.ce, aggregation.WeightedMean(), server_opt.ServerSGD(), (mechanisms.EWC(10.0),)
    ),
    "fednova+wsm@adam(lr=0.01)": Method(losses.wsm, aggregation.FedNova(), server_opt.ServerAdam(0.01)),
    "importance(lam=0.5, walk=true)+tce": Method(
        losses.tce, aggregation.Importance(), server_opt.ServerSGD(), (mechanisms.RWalk(0.5),)
    ),
    "scaffold(weights=examples)+fedprox(mu=0.1)@momentum(beta=0.5)": Method(
        losses.ce,
        aggregation.WeightedMean(),
        server_opt.ServerMomentum(beta=0.5),
        (mechanisms.Proximal(0.1), mechanisms.Scaffold()),
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples(name):
    assert parse(name) == EXAMPLES[name]
    assert name_of(EXAMPLES[name]) == name
    assert parse(EXAMPLES[name]) is EXAMPLES[name]


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("importance(lam=1e5)", "importance(lam=100000)"),
        ("fedavg+ewc(lam=10)", "fedavg+ewc(lam=10)"),
        ("ewc(lam=10)", "fedavg+ewc(lam=10)"),
        ("ewc(lam=1e+7)+tce", "fedavg+ewc(lam=1e7)+tce"),
        ("wsm", "fedavg+wsm"),
        ("ce", "fedavg"),
        ("fedavg+fedprox(mu=1)", "fedprox(mu=1)"),
        ("fedavg(weights=uniform)+fedprox(mu=1)", "fedavg(weights=uniform)+fedprox(mu=1)"),
        ("fedavg+scaffold", "scaffold"),
        ("scaffold+fedavg", "scaffold(weights=examples)"),
        ("fednova+scaffold", "fednova+scaffold"),
        ("scaffold(weights=uniform)", "scaffold"),
        ("fedavg(weights=examples)@sgd(lr=1)", "fedavg"),
        ("fedwagg(clusters=3, evaluators=none)", "fedwagg(clusters=3)"),
        ("fedwavg(alpha=0.3, event_period=5)", "fedwavg(alpha=0.3, event_period=5)"),
        ("  fedavg  +  wsm  @  adam( lr = 0.010 ) ", "fedavg+wsm@adam(lr=0.01)"),
    ],
)
def test_canonical_names(text, canonical):
    assert name_of(parse(text)) == canonical


def test_defaults():
    method = parse("fedavg")
    assert method.loss == losses.ce and method.server_opt == server_opt.ServerSGD(1.0) and method.mechanisms == ()
    assert parse("importance(lam=1)").mechanisms == (mechanisms.EWC(1.0, gamma=0.9, explicit=False),)
    assert parse("fedwagg(clusters=2)").aggregate == aggregation.FedWAgg(2, None, "weights", False, 0)
    for text in ("fedprox", "fedwavg", "fedwagg", "importance", "ewc", "rwalk", "fedrs", "fedlc", "fedavg@adam"):
        with pytest.raises(ConfigError, match=r"needs \w+; write e.g."):
            parse(text)  # no default turns a method into another


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; name at least one term"),
        ("@adam(lr=1)", "is empty; name at least one term"),
        ("fedagv", 'unknown method "fedagv": did you mean "fedavg"'),
        ("quux", 'unknown method "quux": known: ce, events, ewc'),
        ("fedavg+", "is not of the form name"),
        ("fedavg(+wsm", "is not of the form name"),
        ("fedavg)+wsm", "is not of the form name"),
        ("fedavg((weights=uniform))", "is not of the form name"),
        ("fedprox(0.1)", '"0.1" is not of the form key=value'),
        ("fedprox(mu=0.1, mu=0.2)", "mu is given twice; give it once"),
        ("fedprox", r"fedprox needs mu; write e.g. fedprox\(mu=\.\.\.\)"),
        ("fedprox(muu=0.1)", 'fedprox has no option "muu": did you mean "mu"'),
        ("wsm(beta=1)", 'wsm has no option "beta": wsm takes no options'),
        ("fednova(alpha=1)", "fednova takes no options"),
        ("fedprox(mu=strong)", r"fedprox\(mu=strong\): mu must be of type float"),
        ("fedprox(mu=true)", "mu must be of type float"),
        ("fedprox(mu=none)", "mu must be of type float"),
        ("fedprox(mu=nan)", "mu must be a finite number"),
        ("ewc(lam=inf)", "lam must be a finite number"),
        ("fedavg@sgd(lr=1e999)", "lr must be a finite number"),
        ("fedprox(mu=-1)", "choose it >= 0"),
        ("fedwagg(clusters=2.5)", "clusters must be of type int"),
        ("fedwagg(clusters=true)", "clusters must be of type int"),
        ("fedwagg(clusters=none)", "clusters must be of type int"),
        ("fedwagg(clusters=0)", "choose at least one cluster"),
        ("fedwagg(clusters=3, balanced=1)", "balanced must be of type bool"),
        ("fedwagg(clusters=3, features=7)", "features must be of type str"),
        ("fedwagg(clusters=3, features=updates)", 'did you mean "update"'),
        ("fedavg(weights=exmples)", 'did you mean "examples"'),
        ("fedwavg(alpha=1)", r"choose it in \[0, 1\)"),
        ("fedwavg(alpha=0.1, event_period=0)", "count every n-th round"),
        ("wsm+tce", "has two losses, wsm and tce; keep one"),
        ("wsm+wsm", "has two losses, wsm and wsm; keep one"),
        ("fednova+fedwagg(clusters=2)", "has two aggregations, fednova and fedwagg; keep one"),
        ("importance(lam=1)+fedwavg(alpha=0.1)", "has two aggregations, importance and fedwavg"),
        ("fedprox(mu=1)+fedprox(mu=2)", "has fedprox twice; keep one"),
        ("scaffold+scaffold", "has scaffold twice"),
        ("importance(lam=1)+ewc(lam=2)", "has ewc or rwalk twice"),
        ("ewc(lam=1)+rwalk(lam=2)", "has ewc or rwalk twice"),
        ("fedwavg(alpha=0.1)+events", "has events twice"),
        ("fedavg@adam(lr=1)@sgd", "has two server optimisers"),
        ("fedavg@adm(lr=1)", 'unknown server optimiser "adm": did you mean "adam"'),
        ("fedavg@adam", "adam needs lr"),
        ("fedavg@", "is not of the form name"),
        ("fedavg@sgd(lr=0)", r"@sgd\(lr=0.0\): lr must be above 0"),
    ],
)
def test_what_is_refused_and_what_is_said(text, message):
    with pytest.raises(ConfigError, match=message):
        parse(text)


def test_a_method_made_by_hand_is_checked_too():
    twice = Method(
        losses.ce,
        aggregation.WeightedMean(),
        server_opt.ServerSGD(),
        (mechanisms.Proximal(0.1), mechanisms.Proximal(0.2)),
    )
    with pytest.raises(ConfigError, match="has a mechanism twice: fedprox, fedprox"):
        check(twice, Plan(SGD(0.1)))
    with pytest.raises(ConfigError, match="overshoots"):
        check(parse("fedprox(mu=30)"), Plan(SGD(0.1)))
    with pytest.raises(ConfigError, match="more clusters than clients"):
        check(parse("fedwagg(clusters=3)"), Plan(SGD(0.1)), cohort=2)


def test_every_term_is_described_and_says_what_it_sends():
    assert DESCRIBES.keys() == TERMS.keys()
    for part in [*DESCRIBES.values(), *SERVER.values()]:
        assert "Sends:" in (part.__doc__ or "")
    for method in EXAMPLES.values():
        assert all(part.sends() for part in method.parts)


VALUES = st.one_of(
    st.booleans(),
    st.none(),
    st.integers(-(10**12), 10**12),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["2:7", "update", "two-majors", "a/b.npz"]),
)


@given(value=VALUES)
@settings(deadline=None, max_examples=200)
def test_values_read_back_with_their_type(value):
    read = parse_value(format_value(value))
    whole = isinstance(value, float) and type(read) is int  # 1.0 is written 1; the parts know which they want
    assert read == value and (whole or type(read) is type(value))


@given(
    name=st.sampled_from(["fedprox", "hf:mnist", "data/x.npz"]), options=st.dictionaries(st.sampled_from("abc"), VALUES)
)
@settings(deadline=None, max_examples=100)
def test_calls_read_back(name, options):
    assert parse_call(format_call(name, options), "thing") == (name, options)
