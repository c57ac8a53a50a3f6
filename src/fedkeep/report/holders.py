"""Who holds which label, who is a minority, and what the minority forgets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from fedkeep.data.partition_core import Partition, Skew
from fedkeep.report.curves import Band, over_seeds
from fedkeep.report.load import RunData, spread
from fedkeep.report.series import Series

HOLDS = 0.05  # a client holds a label if at least this share of its training examples has it
BINS = 40  # columns of the picture over rounds
MINORITY_RULE = (
    "A client is a minority if the label it has most of is held by the fewest clients (a client holds a label if at "
    "least 5 % of its training examples have it); where that would be half of the clients or more, nobody is."
)


@dataclass(frozen=True, eq=False)
class Holders:
    """counts[k, c]: the training examples of label c on client k; clients[k]: its number."""

    clients: np.ndarray
    labels: np.ndarray
    counts: np.ndarray
    held_out: np.ndarray  # examples a client holds out

    @property
    def sizes(self) -> np.ndarray:
        return self.counts.sum(1)

    @property
    def share(self) -> np.ndarray:
        return self.counts / np.maximum(self.sizes[:, None], 1)

    @property
    def majority(self) -> np.ndarray:
        """The label each client has most of."""
        return self.labels[self.counts.argmax(1)]

    @property
    def minority(self) -> np.ndarray:
        """True for minority clients; see MINORITY_RULE.

        >>> two_to_three = np.array([[9, 0], [9, 1], [0, 9], [0, 9], [2, 7]])
        >>> clients, labels = np.arange(5), np.arange(2)
        >>> Holders(clients, labels, two_to_three[[0, 2, 3]], clients[:3]).minority.tolist()
        [True, False, False]
        """
        holders = (self.share >= HOLDS).sum(0)  # per label
        mine = holders[self.counts.argmax(1)]
        fewest = mine == mine.min()
        return fewest if fewest.sum() * 2 < len(fewest) else np.zeros(len(fewest), dtype=bool)

    @property
    def order(self) -> np.ndarray:
        """Positions of the clients, those with the same majority label side by side."""
        return np.lexsort((self.clients, self.counts.argmax(1)))

    def skew(self) -> Skew:
        """How uneven the partition is."""
        flat = self.counts.ravel()
        owners, labels = (np.repeat(axis.ravel(), flat) for axis in np.indices(self.counts.shape))
        return Partition.from_owners(owners, len(self.clients)).skew(labels)

    def judged_on(self) -> str:
        """What models are judged on, in words."""
        without = int((self.held_out == 0).sum())
        if without == 0:
            return "each client's own held-out examples"
        if without == len(self.clients):
            return "each client's own training examples (nothing is held out)"
        return f"each client's own held-out examples ({without} clients hold nothing out: their training examples)"


def holders(run: RunData) -> Holders | None:
    """Who holds what in a run; None where the partition is not known."""
    if run.partition is None or run.partition.empty:
        return None
    table = run.partition.pivot_table(index="client", columns="class", values="train", aggfunc="sum", fill_value=0)
    held: Any = (
        run.partition.groupby("client")["held_out"].sum() if "held_out" in run.partition else table.sum(axis=1) * 0
    )
    clients, labels = table.index.to_numpy(), table.columns.to_numpy()
    return Holders(clients, labels, table.to_numpy().astype(np.int64), held.loc[clients].to_numpy())


def majority_of(run: RunData) -> dict[int, int]:
    """The label each client has most of; empty where the partition is not known."""
    held = holders(run)
    return {} if held is None else dict(zip(held.clients.tolist(), held.majority.tolist(), strict=True))


@dataclass(frozen=True, eq=False)
class Forgettable:
    """Forgettable examples of one run per client and span of rounds; nan where a client took no part.

    counts[k, b]: the mean over the rounds of span b that client k took part in; spans end with rounds[b].
    """

    clients: np.ndarray
    majority: np.ndarray  # -1 where the partition is not known
    minority: np.ndarray
    sizes: np.ndarray  # training examples
    rounds: np.ndarray
    counts: np.ndarray
    late: np.ndarray  # the mean over the second half of the run, per client

    @property
    def share(self) -> np.ndarray:
        """`late` as a share of the client's training examples."""
        return self.late / np.where(self.sizes > 0, self.sizes, np.nan)


def forgettable(run: RunData, bins: int = BINS) -> Forgettable | None:
    """Forgettable examples per client over rounds, minority first; None where they were not recorded."""
    if run.clients is None or "forgettable" not in run.clients:
        return None
    known = run.clients.dropna(subset=["forgettable"])
    if known.empty:
        return None
    ends = spread(np.unique(run.rounds["round"]), bins)
    place = np.searchsorted(ends, known["round"].to_numpy())
    table = known.assign(span=place).pivot_table(index="client", columns="span", values="forgettable", aggfunc="mean")
    everyone = np.unique(run.clients["client"])
    table = table.reindex(index=everyone, columns=range(len(ends)))
    half = known[known["round"] * 2 > run.last_round]
    late: Any = half.groupby("client")["forgettable"].mean()
    facts = _facts(run, everyone)
    order = np.lexsort((everyone, facts["majority"], ~facts["minority"]))
    return Forgettable(
        clients=everyone[order],
        majority=facts["majority"][order],
        minority=facts["minority"][order],
        sizes=facts["sizes"][order],
        rounds=ends,
        counts=table.to_numpy(dtype=float)[order],
        late=late.reindex(everyone).to_numpy(dtype=float)[order],
    )


def minority_bands(series: Series) -> tuple[Band, Band] | None:
    """Forgettable share of minority clients and of the others over spans of rounds; None without a minority."""
    found = [f for run in series.runs if (f := forgettable(run)) is not None and f.minority.any()]
    if not found:
        return None
    return over_seeds([_shares(f, f.minority) for f in found]), over_seeds([_shares(f, ~f.minority) for f in found])


def _shares(found: Forgettable, who: np.ndarray) -> pd.Series:
    share = found.counts / np.where(found.sizes > 0, found.sizes, np.nan)[:, None]
    return pd.DataFrame(share[who], columns=found.rounds).mean(axis=0)


def _facts(run: RunData, clients: np.ndarray) -> dict[str, np.ndarray]:
    held = holders(run)
    if held is None:
        nothing = np.full(len(clients), -1)
        return {"majority": nothing, "minority": nothing > 0, "sizes": nothing * 0}
    frame = pd.DataFrame(
        {"majority": held.majority, "minority": held.minority, "sizes": held.sizes}, index=held.clients
    ).reindex(clients, fill_value=-1)
    return {
        "majority": frame["majority"].to_numpy(),
        "minority": frame["minority"].to_numpy() == 1,
        "sizes": np.maximum(frame["sizes"].to_numpy(), 0),
    }
