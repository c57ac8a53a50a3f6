"""The figures show the numbers they are given."""

from __future__ import annotations

import numpy as np
import pytest

from fedkeep.report.curves import METRICS, Band
from fedkeep.report.figures import class_flows, minority_lines, over_rounds
from fedkeep.report.flows import Classes
from fedkeep.report.holders import Forgettable, Holders
from fedkeep.report.maps import class_map, forgettable_map, heatmap, heatmap_sheet, partition_map
from fedkeep.report.matrices import Matrix
from fedkeep.report.style import EMPTY, Pen, ready_for_paper

PEN = Pen("fedavg", "#0072B2")
BAND = Band(np.array([1, 2]), np.array([0.25, 0.5]), np.array([0.125, 0.5]), np.array([0.5, 0.5]), seeds=2)
MATRIX = Matrix(
    round=3,
    models=np.array([5, 7]),
    data=np.array([5, 7, 1]),
    before=np.array([0.5, 0.75, 1.0]),
    local=np.array([[1.0, 0.25, 0.5], [0.0, 0.75, np.nan]]),
)


def test_a_line_is_the_mean_and_its_band_the_seeds() -> None:
    figure = over_rounds([(PEN, BAND)], METRICS["accuracy"])
    high, low, mean = figure.data
    np.testing.assert_array_equal(mean.y, [25, 50])
    np.testing.assert_array_equal(high.y, [50, 50])
    np.testing.assert_array_equal(low.y, [12.5, 50])
    assert (low.fill, mean.line.color, low.fillcolor) == ("tonexty", "#0072B2", "rgba(0,114,178,0.16)")
    assert {trace.legendgroup for trace in figure.data} == {"fedavg"}
    assert figure.layout.yaxis.title.text == "Test accuracy (%)"


def test_one_seed_has_no_band_and_counts_are_not_percent() -> None:
    single = Band(BAND.rounds, np.array([3.0, 4.0]), BAND.low, BAND.high, seeds=1)
    (mean,) = over_rounds([(PEN, single)], METRICS["forgettable"]).data
    np.testing.assert_array_equal(mean.y, [3, 4])


def test_a_metric_that_is_not_known_is_not_drawn() -> None:
    unknown = Band(BAND.rounds, *[np.full(2, np.nan)] * 3, seeds=2)
    assert over_rounds([(PEN, unknown), (Pen("b", "#009E73"), BAND)], METRICS["loss"]).data[0].legendgroup == "b"


def test_the_heatmap_of_f_is_fixed_and_centred() -> None:
    figure = heatmap(MATRIX, "forgetting", {5: 2})
    (cells,) = figure.data
    np.testing.assert_array_equal(cells.z, [[-0.5, 0.5, 0.5], [0.5, 0.0, np.nan]])
    assert (cells.zmin, cells.zmax) == (-1, 1) and cells.colorscale[2] == (0.5, "#f7f7f7")
    assert cells.y == ("client 5, mostly label 2", "client 7") and cells.x[2] == "client 1"
    assert figure.layout.xaxis.ticktext == ("5", "7", "1") and figure.layout.plot_bgcolor == EMPTY
    own, edge = figure.layout.shapes
    assert own.path == "M-0.5,-0.5H0.5V0.5H-0.5ZM0.5,0.5H1.5V1.5H0.5Z"
    assert (edge.x0, edge.x1, edge.y0, edge.y1) == (1.5, 1.5, -0.5, 1.5)


def test_the_heatmap_of_accuracy_runs_from_nothing_to_all() -> None:
    (cells,) = heatmap(MATRIX, "accuracy", {}).data
    np.testing.assert_array_equal(cells.z, MATRIX.local.astype(np.float32))
    assert (cells.zmin, cells.zmax) == (0, 1)


def test_a_sheet_has_a_row_per_method_with_the_same_colours() -> None:
    sheet = heatmap_sheet([("fedavg", MATRIX, {}), ("fedavg+wsm", MATRIX, {})])
    assert [trace.zmin for trace in sheet.data] == [-1, 0, -1, 0]
    assert all(trace.showscale for trace in sheet.data)
    assert len(sheet.layout.shapes) == 4 * 2
    assert sheet.layout.yaxis4.autorange == "reversed" and sheet.layout.xaxis.type == "category"


def test_forgettable_examples_with_the_minority_on_top() -> None:
    found = Forgettable(
        clients=np.array([4, 0, 2]),
        majority=np.array([1, 0, -1]),
        minority=np.array([True, False, False]),
        sizes=np.array([9, 9, 9]),
        rounds=np.array([1, 5]),
        counts=np.array([[1.0, 7.0], [np.nan, 2.0], [0.0, 3.0]]),
        late=np.zeros(3),
    )
    figure = forgettable_map(found)
    assert figure.data[0].zmax == 7
    assert figure.data[0].y == ("client 4, mostly label 1", "client 0, mostly label 0", "client 2")
    assert figure.layout.yaxis.ticktext == ("★ 4", "0", "2")
    # Plotly takes a mark for the category of that name first, and for a place on the axis only where there is none
    assert figure.layout.xaxis.ticktext == ("1", "5") and figure.layout.xaxis.tickvals == (0, 1)
    assert not set(figure.data[0].x) & {"0", "1"}
    assert figure.layout.shapes[0].y0 == 0.5, "the line under the minority"


def test_minority_is_solid_and_the_others_dotted() -> None:
    few, others = minority_lines([(PEN, BAND, BAND)]).data
    assert (few.line.dash, others.line.dash) == ("solid", "dot")
    np.testing.assert_array_equal(few.y, [25, 50])


def test_the_partition_shows_shares_of_labels() -> None:
    held = Holders(np.arange(3), np.arange(2), np.array([[0, 4], [3, 1], [0, 8]]), np.zeros(3))
    figure = partition_map(held)
    np.testing.assert_array_equal(figure.data[0].z, [[0.75, np.nan, np.nan], [0.25, 1, 1]])
    assert figure.data[0].x == ("client 1", "client 0", "client 2")
    assert figure.layout.xaxis.ticktext == ("★ 1", "0", "2")


def test_classes_with_numbers_in_points() -> None:
    figure = class_map([("fedavg", np.array([0.456, -0.02, np.nan]))], np.array([0, 3, 9]), "forgetting")
    assert [list(row) for row in figure.data[0].text] == [["46", "\N{MINUS SIGN}2", ""]]
    assert figure.data[0].x == ("class 0", "class 3", "class 9")


def test_flows_go_up_and_down() -> None:
    found = Classes(np.array([0]), *(np.array([float(value)]) for value in (0.1, 0.2, 5, 2, 3, 1)))
    bars = {bar.name: float(bar.y[0]) for bar in class_flows(found, highest=9).data}
    assert bars == {
        "learned": 5,
        "regained by aggregation": 1,
        "forgotten by local training": -2,
        "forgotten by aggregation": -3,
    }


@pytest.mark.parametrize(("names", "legend"), [(["a"], False), (["a", "b"], True)])
def test_a_figure_for_a_paper_is_white_and_has_a_legend_where_there_is_a_choice(names: list[str], legend: bool) -> None:
    made = ready_for_paper(over_rounds([(Pen(name, "#0072B2"), BAND) for name in names], METRICS["accuracy"]))
    assert made.layout.paper_bgcolor == "white" and made.layout.showlegend is legend
