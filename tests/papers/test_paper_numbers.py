"""The papers' numbers in the recipes are those of the papers' text, all of them and no other."""

from __future__ import annotations

import pytest

from fedkeep.papers.expand import plan
from fedkeep.papers.recipe import recipes
from papers.numbers_typed import TYPED


def test_every_recipe_is_there():
    assert set(recipes()) == set(TYPED)


@pytest.mark.parametrize("name", TYPED)
def test_numbers(name):
    given = {place: (number.value, number.spread, number.text) for place, number in recipes()[name].numbers.items()}
    assert given == TYPED[name]


def test_a_few_by_hand():
    """Read once more, independently of both tables: the numbers that the papers' abstracts and texts dwell on."""
    numbers = {name: recipe.numbers for name, recipe in recipes().items()}
    # "performance gain of 3.49% and 1.46% in MLP and CNN"
    ours, base = (numbers["importance/table1"][row, "MNIST MLP"].value for row in ("Ours", "FedAvg"))
    assert ours - base == pytest.approx(3.49)
    # "increased by 1989% in MNIST": federated is 19.89 times centralised
    events = numbers["fedwavg/table1"]
    assert events["Federated", "MNIST"].value / events["Centralized", "MNIST"].value == pytest.approx(19.89, abs=0.005)
    # "learning rates between 0.03 and 0.1 FedAvg+WSM has remarkably steady performance"
    wsm = numbers["wsm/table1"]
    steady = [wsm[f"FedAvg+WSM, lr={rate}", "CIFAR-10"].value for rate in ("0.1", "0.07", "0.05", "0.03")]
    assert (min(steady), max(steady)) == (0.855, 0.858)
    # "7.6% for CIFAR-100" with LeNet
    lenet = numbers["wsm/table3"]
    gain = lenet["FedAvg+WSM", "CIFAR-100"].value - lenet["FedAvg", "CIFAR-100"].value
    assert gain == pytest.approx(0.076)


def test_tables_that_share_numbers_agree():
    """Tables that show the same run: WSM's 1 and 4, its 3 and 5, FedWAvg's 2 and 6."""
    wsm1, wsm4 = recipes()["wsm/table1"].numbers, recipes()["wsm/table4"].numbers
    for (row, column), number in wsm1.items():
        norm = "batch" if row.startswith("FedAvg+WSM") else "group"
        assert wsm4[f"{row}, norm={norm}", column] == number
    lenet3, lenet5 = recipes()["wsm/table3"].numbers, recipes()["wsm/table5"].numbers
    for (row, column), number in lenet3.items():
        assert number in [lenet5[key] for key in lenet5 if key[0].startswith(f"{row}, ") and key[1] == column]
    table2, table6 = recipes()["fedwavg/table2"].numbers, recipes()["fedwavg/table6"].numbers
    last = {key: number for key, number in table2.items() if key[0] == "FedAvg, round 100"}
    assert last == {key: number for key, number in table6.items() if key[0] == "FedAvg, round 100"}


@pytest.mark.parametrize("name", [n for n, r in recipes().items() if r.kind in ("table", "curves", "lines")])
def test_numbers_stand_in_cells_that_exist(name, tiny_root):
    recipe = recipes()[name]
    made = plan(recipe, "paper", 1, tiny_root)
    rows, columns = {row.name for row in made.rows}, {place.name for place in made.all_places}
    assert {row for row, _ in recipe.numbers} <= rows
    assert {column for _, column in recipe.numbers} <= columns
