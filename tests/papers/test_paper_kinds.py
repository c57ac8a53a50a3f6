"""The kinds, on small runs over digits and on tables worked by hand."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pandas as pd
import pytest
import torch

from fedkeep.centralised import centralised
from fedkeep.experiment import execute
from fedkeep.experiment.build import prepare
from fedkeep.papers.expand import plan
from fedkeep.papers.kinds import EVALUATE, Context
from fedkeep.papers.kinds.heatmap import mean_forgetting, own_advantage
from fedkeep.papers.kinds.personalised import accuracies
from fedkeep.papers.recipe import parse
from fedkeep.papers.store import Store

DIGITS = """
name = "wsm/x"
where = "Table 9"
title = "t"
claim = "c"
{head}

{lines}

[[columns]]
label = "digits"

[paper]
settings = {{ data = "digits", limit = 300, rounds = 4, fraction = 1.0, {more} }}
[small]
[smoke]
"""


ONE_LINE = '[[lines]]\nlabel = "FedAvg"'


@pytest.fixture
def evaluated(tmp_path):
    def run(head, lines=ONE_LINE, partition="iid", clients=2, more="lr = 0.1", numbers="", seeds=2):
        text = DIGITS.format(head=head, lines=lines, more=f'clients = {clients}, partition = "{partition}", {more}')
        made = plan(parse(text + numbers, "test"), "paper", seeds, None)
        store = Store(tmp_path / "runs")
        store.run(store.todo(made.arms, made.seeds), 1, 1)
        assert not store.failures
        context = Context(made, store, 1)
        return context, EVALUATE[made.recipe.kind](context)

    return run


def test_a_table_has_the_readings_of_its_runs(evaluated):
    context, outcome = evaluated('kind = "table"\nlast = 2\nalso = ["top"]')
    made = context.plan
    runs = context.runs(made.rows[0], made.places[0])
    again = execute(context.arm_at(made.places[0]).config).frame("rounds")["accuracy"]
    assert np.array_equal(runs[0].rounds["accuracy"], again)
    main, also = outcome.tables
    assert main.cells["FedAvg", "digits"].values[0] == pytest.approx(100 * again.iloc[-2:].mean())
    assert also.title == "Also: best round" and also.cells["FedAvg", "digits"].values[0] == 100 * again.max()


def test_counts_are_those_of_the_clients(evaluated):
    context, outcome = evaluated(
        'kind = "counts"\nunit = "count"\nminority = 1\nrounds = [2, 4]',
        partition="label_clusters(sizes=1:2, classes_per_cluster=2, samples=10)",
        clients=3,
        numbers='[numbers]\n"FedAvg, round 4" = { Minor1 = 9, Major1 = 1, Major2 = 3 }\n',
    )
    main, shares = outcome.tables
    assert main.columns == ["Minor1", "Major1", "Major2"] and main.rows == ["FedAvg, round 2", "FedAvg, round 4"]
    run = context.runs(context.plan.rows[0], context.plan.places[0])[1]
    table = run.clients[run.clients["round"] == 4].set_index("client")["forgettable"]
    assert [main.cells["FedAvg, round 4", name].values[1] for name in main.columns] == table.tolist()
    sizes = run.holdings.sum(1)
    assert sizes.tolist() == [9, 9, 9]  # a tenth is held out
    found = shares.cells["FedAvg, round 4", "majority"]
    assert found.values[1] == pytest.approx((table[1] + table[2]) / 18)
    assert found.paper.value == pytest.approx(0.2)  # (1 + 3) / 2 of 10
    assert shares.cells["FedAvg, round 4", "minority"].values[1] == pytest.approx(table[0] / 9)
    assert table.sum() > 0


def test_only_held_classes_count(evaluated):
    head = 'kind = "curves"\nreading = "last"\nheld_classes = {}\ncurve = "accuracy"'
    partition = "label_clusters(sizes=1:1, classes_per_cluster=2, samples=20)"
    _, every = evaluated(head.format("false"), partition=partition, seeds=1)
    context, held = evaluated(head.format("true"), partition=partition, seeds=1)
    run = context.runs(context.plan.rows[0], context.plan.places[0])[0]
    classes = set(np.flatnonzero(run.holdings.sum(0)))
    labels = prepare(run.config).dataset.test_y.tolist()
    share = sum(label in classes for label in labels) / len(labels)
    assert len(classes) == 4 and 0.3 < share < 0.5
    plain, ours = (o.tables[0].cells["FedAvg", "digits"].values[0] for o in (every, held))
    assert ours == pytest.approx(plain / share) and ours <= 100


def test_events_are_those_of_centralised_training(evaluated):
    context, outcome = evaluated('kind = "events"\nunit = "count"', clients=3, seeds=1)
    cells = outcome.tables[0].cells
    alone = centralised(context.plan.arms[0].config)
    assert len(alone.epochs) == 4 * 2  # rounds x local epochs
    assert cells["Centralized", "digits"].values[0] == alone.events.accuracy
    run = context.runs(context.plan.rows[0], context.plan.places[0])[0]
    together = np.nansum(run.clients["forgettable"])
    assert cells["Federated", "digits"].values[0] == together > 0
    assert cells["Increase (%)", "digits"].values[0] == pytest.approx(100 * together / alone.events.accuracy)
    before = {path: path.stat().st_mtime_ns for path in context.store.folder.rglob("seed-0.json")}
    EVALUATE["events"](context)
    assert before and all(path.stat().st_mtime_ns == time for path, time in before.items())  # not trained twice


def test_personalised_inference_by_hand(evaluated):
    context, outcome = evaluated('kind = "personalised"', partition="dirichlet(alpha=0.1)", clients=4, seeds=1)
    run = context.runs(context.plan.rows[0], context.plan.places[0])[0]
    prepared, tensors = prepare(run.config), run.model
    module = prepared.model.load(tensors, {}).eval()
    plain, ours = [], []
    for client in range(4):
        held = prepared.population.held_out.indices(client)
        _, own = prepared.population.examples(client)
        shares = np.array([(own == label).sum() for label in range(10)]) / len(own)
        for row in held:
            with torch.no_grad():
                logits = module(prepared.dataset.train_x[row : row + 1])[0].double().numpy()
            truth = int(prepared.dataset.train_y[row])
            plain.append(logits.argmax() == truth)
            # the softmax of WSM: beta_c exp f_c
            ours.append((shares * np.exp(logits - logits.max())).argmax() == truth)
    assert accuracies(run) == (np.mean(plain), np.mean(ours))
    cells = outcome.tables[0].cells
    assert cells["FedAvg", "gain"].values[0] == pytest.approx(100 * (np.mean(ours) - np.mean(plain)))
    assert ours != plain


PAIRS = pd.DataFrame(
    {
        "model": [0, 0, 0, 1, 1, 1],
        "data": [0, 1, 9, 0, 1, 9],
        "forgetting": [-0.5, 0.4, 1.0, 0.2, -0.1, 1.0],
        "accuracy_local": [1.0, 0.2, 0.0, 0.4, 0.8, 0.0],
        "data_in_cohort": [True, True, False, True, True, False],
    }
)


def test_numbers_of_a_heatmap():
    assert mean_forgetting(PAIRS) == pytest.approx(0.3)  # 0.4 and 0.2: others' data, inside the cohort
    assert own_advantage(PAIRS) == pytest.approx(0.6)  # 0.9 against 0.3
    assert np.isnan(mean_forgetting(PAIRS[:1]))


def test_heatmaps_keep_the_chosen_rounds(evaluated):
    context, outcome = evaluated('kind = "heatmap"\nunit = "share"\nrounds = [1, 4]', clients=3, seeds=1)
    run = context.runs(context.plan.rows[0], context.plan.places[0])[0]
    assert outcome.tables[0].columns == ["round 1", "round 4"]
    assert sorted(outcome.records["pairs"]["round"].unique()) == [1, 4]
    own = run.rounds.set_index("round")["forgetting"]  # the run's own summary: mean over models of their means
    assert outcome.tables[0].cells["FedAvg", "round 4"].values[0] == pytest.approx(own[4])


def test_learning_rates_near_the_best(evaluated):
    lines = '[[lines]]\nlabel = "FedAvg"\nsweep = { lr = [0.1, 0.2, 0.3] }'
    context, _ = evaluated('kind = "robustness"\nunit = "share"\nreading = "last"', lines, seeds=1)
    final = {0.1: 0.700, 0.2: 0.715, 0.3: 0.660}
    for row in context.plan.rows:
        rate = float(row.at.removeprefix("lr="))
        for run in context.runs(row, context.plan.places[0]).values():
            run.__dict__["rounds"] = pd.DataFrame(
                {"round": [4], "accuracy": [final[rate]]}
            )  # in place of the real ones
    cells = EVALUATE["robustness"](context).tables[0].cells
    found = {column.partition(", ")[2]: cell.values[0] for (_, column), cell in cells.items()}
    assert found == {"best": 0.715, "within 2 %": 2, "within 3 %": 2, "within 5 %": 2}
    assert isinstance(type(run).rounds, cached_property)


def test_a_partition_in_numbers(tmp_path):
    text = DIGITS.format(head='kind = "partition"', lines=ONE_LINE, more='clients = 6, partition = "shards"')
    made = plan(parse(text, "test"), "paper", 1, None)
    cells = EVALUATE["partition"](Context(made, Store(tmp_path))).tables[0].cells
    prepared = prepare(made.arms[0].config)
    labels = prepared.dataset.train_y.numpy()
    held = [labels[prepared.partition.indices(client)].tolist() for client in range(6)]
    classes = [len(set(mine)) for mine in held]
    largest = [max(mine.count(label) for label in mine) / len(mine) for mine in held]
    assert cells["classes a client holds, mean", "digits"].values[0] == sum(classes) / 6
    assert cells["share of the largest class, mean", "digits"].values[0] == pytest.approx(sum(largest) / 6)
    assert cells["clients that hold every class", "digits"].values[0] == 0
