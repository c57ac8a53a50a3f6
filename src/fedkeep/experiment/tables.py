"""Records as columnar tables (Parquet)."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fedkeep.errors import DataError
from fedkeep.metrics.measure import Table
from fedkeep.simulate import RoundRecord

TABLES = ("rounds", "clients", "classes", "forgetting")


class History:
    """The tables of a run, grown round by round."""

    def __init__(self) -> None:
        self._parts: dict[str, list[pa.Table]] = {name: [] for name in TABLES}

    def add(self, record: RoundRecord) -> None:
        row = {key: np.array([value]) for key, value in record.row().items()}
        self._parts["rounds"].append(pa.table(row))
        if record.measured:
            for name in TABLES[1:]:
                table: Table = getattr(record.measured, name)
                self._parts[name].append(pa.table(dict(table)))

    def mark(self) -> dict[str, int]:
        """Where the tables end now."""
        return {name: len(parts) for name, parts in self._parts.items()}

    def cut(self, mark: Mapping[str, int]) -> None:
        """Forget what was added since a mark."""
        for name, length in mark.items():
            del self._parts[name][length:]

    def append(self, tables: Mapping[str, pa.Table]) -> None:
        for name, table in tables.items():
            self._parts[name].append(table)

    def table(self, name: str) -> pa.Table | None:
        return join(self._parts[name])

    def tables(self) -> dict[str, pa.Table]:
        return {name: table for name in TABLES if (table := self.table(name)) is not None}


def join(parts: Sequence[pa.Table]) -> pa.Table | None:
    return pa.concat_tables(parts, promote_options="permissive") if parts else None


def to_parquet(table: pa.Table | Mapping[str, Any]) -> bytes:
    """A table as the bytes of a Parquet file."""
    sink = io.BytesIO()
    pq.write_table(table if isinstance(table, pa.Table) else pa.table(dict(table)), sink, compression="zstd")
    return sink.getvalue()


def from_parquet(data: bytes, where: str) -> pa.Table:
    try:
        return pq.read_table(io.BytesIO(data))
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{where}: not a readable Parquet table ({error})") from None
