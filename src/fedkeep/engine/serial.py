"""All client work in this process, one client after another."""

from __future__ import annotations

from dataclasses import dataclass

from fedkeep.engine.base import Bench, joined, judging_chunks


@dataclass(frozen=True)
class SerialEngine:
    """The plain engine: what every other one is compared with."""

    bench: Bench

    @property
    def workers(self) -> int:
        return 1

    def train(self, broadcast, groups, memories, rows):
        for clients in groups:
            yield self.bench.run_group(broadcast, clients, memories, rows)

    def judge(self, params, buffers, pool, rows=None):
        chunks = judging_chunks(self.bench, pool, rows)
        return joined([self.bench.judge(params, buffers, pool, chunk) for chunk in chunks])

    def score(self, models, evaluators):
        return [
            [self.bench.score(params, buffers, client) for client in asked]
            for (params, buffers), asked in zip(models, evaluators, strict=True)
        ]

    def close(self):
        pass
