"""From a recipe to configs: what stands over what, and what is skipped."""

from __future__ import annotations

import pytest

from fedkeep.errors import ConfigError
from fedkeep.papers.expand import plan, scaled_round
from fedkeep.papers.recipe import find, parse, recipes

TEXT = """
name = "wsm/x"
where = "Table 9"
title = "t"
kind = "table"
claim = "c"

[[lines]]
label = "A"
method = "fedprox(mu={mu})"
settings = { lr = 0.2 }
columns = { "two" = { lr = 0.3 } }

[[lines]]
label = "B"
sweep = { lr = [0.5, 0.6], norm = ["group", "batch"] }

[[columns]]
label = "one"
words = { mu = 1 }
at = 50

[[columns]]
label = "two"
settings = { clients = 7, rounds = 200 }
words = { mu = 2 }

[[columns]]
label = "far"
settings = { data = "cifar100" }
words = { mu = 3 }

[[columns]]
words = { mu = 4 }
sweep = { "partition.alpha" = [0.1, 10] }
scales = ["small"]

[paper]
seeds = 2
settings = { data = "digits", partition = "dirichlet(alpha=1)", clients = 5, fraction = 1.0, rounds = 100, lr = 0.1 }

[small]
reduced = "less"
settings = { rounds = 10, batch_size = 4 }
sweep = { lr = [0.5] }
columns = { "one" = { at = 30, rounds = 20 } }
lines = { "A" = { batch_size = 8 } }

[smoke]
reduced = "least"
"""


@pytest.fixture
def recipe():
    return parse(TEXT, "test")


def configs(made):
    return {(arm.row.name, arm.place.name): arm.config for arm in made.arms}


def test_paper_scale(recipe):
    made = plan(recipe, "paper", None, None)
    found = configs(made)
    assert made.seeds == (0, 1)
    assert [row.name for row in made.rows] == [
        "A",
        "B, lr=0.5, norm=group",
        "B, lr=0.5, norm=batch",
        "B, lr=0.6, norm=group",
        "B, lr=0.6, norm=batch",
    ]
    assert [place.name for place in made.all_places] == ["one", "two", "far"]
    assert found["A", "one"].method == "fedprox(mu=1)" and found["A", "two"].method == "fedprox(mu=2)"
    assert (found["A", "one"].lr, found["A", "two"].lr) == (0.2, 0.3)
    assert (found["A", "one"].rounds, found["A", "two"].rounds) == (100, 200)
    assert found["B, lr=0.6, norm=group", "two"].clients == 7
    assert found["B, lr=0.6, norm=group", "two"].lr == 0.6
    assert made.skipped == {"far": "data set cifar100 not found (no --data-root was given)"}
    assert made.arm(made.rows[0], made.places[0]).here(50) == 50


def test_small_scale_changes_what_it_names(recipe):
    made = plan(recipe, "small", 1, None)
    found = configs(made)
    assert [row.name for row in made.rows] == ["A", "B, lr=0.5, norm=group", "B, lr=0.5, norm=batch"]
    assert (found["A", "one"].rounds, found["A", "two"].rounds) == (20, 10)
    assert found["A", "one"].batch_size == 8 and found["B, lr=0.5, norm=batch", "one"].batch_size == 4
    assert found["A", "one"].lr == 0.2 and found["A", "two"].clients == 7  # not named, so they stay
    assert found["A", "alpha=10"].partition == "dirichlet(alpha=10)"
    one = next(arm for arm in made.arms if arm.place.name == "one")
    assert one.place.column.at == 30 and one.here(30) == 6  # 30 of 100 as 6 of 20


def test_only(recipe):
    made = plan(recipe, "small", 1, None, only="ALPHA")
    assert [place.name for place in made.places] == ["alpha=0.1", "alpha=10"]
    assert made.skipped["one"] == 'left out with --only "ALPHA"'


def test_bad_recipes_say_where():
    cases = {
        'unknown key "clam": did you mean "claim"': TEXT.replace("claim =", "clam ="),
        'kind "tabel" is unknown: did you mean "table"': TEXT.replace('kind = "table"', 'kind = "tabel"'),
        "[smoke] is missing": TEXT.partition("[smoke]")[0],
        "title is missing": TEXT.replace('title = "t"', ""),
        "cannot be read as TOML": TEXT + "[",
        "is no number": TEXT + '[numbers]\n"A" = { "one" = [1] }\n',
    }
    for message, text in cases.items():
        with pytest.raises(ConfigError) as error:
            parse(text, "recipe wsm/x")
        assert message in str(error.value) and "recipe wsm/x" in str(error.value)
    with pytest.raises(ConfigError, match=r'recipe wsm/x, \[paper\], A, one: .*unknown option "rounbs"'):
        plan(parse(TEXT.replace("rounds = 100", "rounbs = 9, rounds = 100"), "x"), "paper", 1, None)


@pytest.mark.parametrize(
    ("round", "of", "rounds", "here"), [(1, 4000, 2, 1), (4000, 4000, 2, 2), (3600, 4000, 10, 9), (10, 100, 50, 5)]
)
def test_scaled_rounds(round, of, rounds, here):
    assert scaled_round(round, of, rounds) == here


def test_find():
    assert [recipe.name for recipe in find(["wsm/table?", "wsm/table1"])] == [f"wsm/table{n}" for n in range(1, 6)]
    assert len(find(["all"])) == len(recipes()) == len(find(["*/*"]))
    assert [recipe.paper for recipe in find(["tce"])] == ["tce"] * 5
    with pytest.raises(ConfigError, match="no recipe"):
        find(["nothing/*"])


@pytest.mark.parametrize("name", recipes())
def test_reductions_are_stated(name):
    recipe = recipes()[name]
    assert recipe.scales["small"].reduced and recipe.scales["smoke"].reduced and not recipe.scales["paper"].reduced
    assert 0 < recipe.scales["small"].minutes <= 35 and recipe.checks
    assert recipe.claim.endswith(".")
