"""Local client forgetting F_ki at chosen rounds: who forgot whose data."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from fedkeep.papers import figures
from fedkeep.papers.expand import Place, Row
from fedkeep.papers.kinds.base import Context, Outcome, chosen_rounds
from fedkeep.papers.store import Finished


def heatmap(context: Context) -> Outcome:
    """Heatmaps of one seed; in numbers the mean F_ki on others' data, and how much better a model is on its own."""
    plan, recipe = context.plan, context.recipe
    if not plan.arms:
        return Outcome([])
    where = {_name(plan.places, place, number): (place, number) for place in plan.places for number in recipe.rounds}

    def pairs(run: Finished, row: Row, column: str) -> pd.DataFrame:
        place, number = where[column]
        return run.pairs.loc[run.pairs["round"] == plan.arm(row, place).here(number)]

    tables = [
        context.grid(title, list(where), lambda *asked, value=value: value(pairs(*asked)), lambda c: where[c][0])
        for title, value in (
            ("Mean forgetting F_ki on the data of the round's other clients", mean_forgetting),
            ("How much more accurate local models are on their own data than on others'", own_advantage),
        )
    ]
    place = plan.places[0]
    kept = _kept(context)
    figure = figures.heatmaps(_grid(context, place), recipe.title, plan.seeds[0])
    return Outcome(tables, figure, chosen_rounds(context.arm_at(place), recipe.rounds), {"pairs": kept})


def _name(places: tuple[Place, ...], place: Place, number: int) -> str:
    return f"round {number}" if len(places) == 1 else f"{place.name}, round {number}"


def mean_forgetting(pairs: pd.DataFrame) -> float:
    """The mean of F_ki over i != k, inside the cohort."""
    return _mean(pairs["forgetting"].to_numpy(dtype=float)[_others(pairs)])


def own_advantage(pairs: pd.DataFrame) -> float:
    """Accuracy after local training: on the model's own data minus on that of the other clients."""
    accuracy = pairs["accuracy_local"].to_numpy(dtype=float)
    own = pairs["model"].to_numpy() == pairs["data"].to_numpy()
    return _mean(accuracy[own]) - _mean(accuracy[_others(pairs)])


def _others(pairs: pd.DataFrame) -> np.ndarray:
    """A model on the data of another client of the cohort."""
    return (pairs["model"].to_numpy() != pairs["data"].to_numpy()) & pairs["data_in_cohort"].to_numpy(dtype=bool)


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else math.nan


def _grid(context: Context, place: Place) -> dict[str, dict[str, pd.DataFrame]]:
    """Pairs of the first seed by round and method."""
    seed, grid = context.plan.seeds[0], {}
    for number in context.recipe.rounds:
        by_row = {}
        for row in context.plan.rows:
            run = context.runs(row, place).get(seed)
            if run is not None:
                here = context.plan.arm(row, place).here(number)
                by_row[row.name] = run.pairs[run.pairs["round"] == here]
        grid[f"round {number}"] = by_row
    return grid


def _kept(context: Context) -> pd.DataFrame:
    """The pairs of the chosen rounds, for the raw records."""
    frames = []
    for arm in context.plan.arms:
        rounds = [arm.here(number) for number in context.recipe.rounds]
        for seed, run in context.runs(arm.row, arm.place).items():
            chosen = run.pairs[run.pairs["round"].isin(rounds)]
            frames.append(chosen.assign(row=arm.row.name, column=arm.place.name, seed=seed))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
