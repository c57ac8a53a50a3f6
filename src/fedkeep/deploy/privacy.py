"""Client-level differential privacy: clip each client's update, add noise to their sum, account for it.

McMahan et al. 2018, "Learning Differentially Private Recurrent Language Models", Algorithm 1, with a fixed cohort size:

    delta_k <- delta_k min(1, C / ||delta_k||)
    w_{t+1} = w_t + (1/m) (sum_k delta_k + N(0, (z C)^2 I))         C is dp_clip, z dp_noise, m the planned cohort

Missing clients count as zero, so m is fixed. Cohorts are drawn without replacement; neighbours differ in one client's
data, replaced by anything else. Then the sum changes by at most 2 C, so the noise multiplier that is accounted for is
z / 2. What is protected is what leaves the server: the models of all rounds. The server itself sees clipped updates.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, replace

import numpy as np
import torch

from fedkeep.aggregation import WeightedMean
from fedkeep.bundles import Bundle
from fedkeep.deploy.options import Options
from fedkeep.errors import ConfigError
from fedkeep.experiment.config import Config
from fedkeep.mechanisms import Proximal
from fedkeep.method import Method
from fedkeep.model import Model
from fedkeep.tree import Params, add, norm, scale, zeros_like


@dataclass(frozen=True)
class Privacy:
    """How private a run is meant to be."""

    clip: float
    noise: float
    delta: float
    clients: int
    cohort: int

    @staticmethod
    def of(config: Config, options: Options, cohort: int) -> Privacy | None:
        """The privacy that is asked for; None where it is off."""
        if not options.private:
            return None
        for key, value in (("dp_clip", options.dp_clip), ("dp_noise", options.dp_noise)):
            if not 0 < value < math.inf:
                raise ConfigError(f"{key}={value}: differential privacy needs both dp_clip and dp_noise above 0")
        if not 0 < options.dp_delta < 1:
            raise ConfigError(f"dp_delta={options.dp_delta}: choose it above 0 and well below 1 / number of clients")
        return Privacy(options.dp_clip, options.dp_noise, options.dp_delta, config.clients, cohort)

    def epsilon(self, rounds: int) -> float:
        """What `rounds` rounds cost, by dp-accounting's Renyi accountant."""
        if rounds == 0:
            return 0.0
        import dp_accounting  # slow to import, and an extra

        accountant = dp_accounting.rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
        gaussian = dp_accounting.GaussianDpEvent(self.noise / 2)
        event = dp_accounting.SampledWithoutReplacementDpEvent(self.clients, self.cohort, gaussian)
        accountant.compose(event, rounds)
        return float(accountant.get_epsilon(self.delta))

    def report(self, rounds: int) -> dict[str, float | int | str]:
        """What the run's outcome says of it."""
        return {
            "epsilon": self.epsilon(rounds),
            "delta": self.delta,
            "clip": self.clip,
            "noise": self.noise,
            "rounds": rounds,
            "clients": self.clients,
            "cohort": self.cohort,
            "neighbours": "one client's data replaced",
        }

    def describe(self, rounds: int) -> str:
        """In words."""
        return (
            f"client-level differential privacy: epsilon {self.epsilon(rounds):.3g} at delta {self.delta:g} after "
            f"{rounds} rounds (clip {self.clip:g}, noise {self.noise:g}, {self.cohort} of {self.clients} clients a "
            "round, one client's data replaced); the server sees each clipped update"
        )

    def noised(self, bundle: Bundle, rng: np.random.Generator) -> Bundle:
        """The sum of clipped updates with noise, such that the uniform mean of the usable ones is the sum over m."""
        noise = {
            name: torch.from_numpy(rng.normal(0.0, self.noise * self.clip, tuple(t.shape))).to(t.dtype)
            for name, t in bundle.total.items()
        }
        return replace(bundle, total=scale(add(bundle.total, noise), len(bundle.usable) / self.cohort))


def clipped(delta: Params, clip: float) -> Params:
    """The update, shortened to the norm `clip` where it is longer.

    >>> clipped({"w": torch.tensor([3.0, 4.0])}, 1.0)["w"]
    tensor([0.6000, 0.8000])
    """
    size = norm(delta)
    if not math.isfinite(size):
        return zeros_like(delta)
    return delta if size <= clip else scale(delta, clip / size)


def unpredictable() -> np.random.Generator:
    """Noise that nobody can repeat. A seed of the experiment would let whoever knows it take the noise off again."""
    return np.random.Generator(np.random.PCG64(secrets.randbits(256)))


def check_covered(method: Method, model: Model, config: Config, options: Options) -> None:
    """Refuse what clipping and noise do not cover, saying why."""
    if not options.private:
        return
    if reasons := uncovered(method, model, config, options):
        raise ConfigError(f"differential privacy does not cover this run: {'; '.join(reasons)}")


def uncovered(method: Method, model: Model, config: Config, options: Options) -> list[str]:
    """Everything that would leave a client without noise."""
    reasons = []
    if not isinstance(method.aggregate, WeightedMean):
        reasons.append(
            f"{method.aggregate.name} looks at each client's update or numbers by itself; use fedavg(weights=uniform)"
        )
    elif method.aggregate.weights_by != "uniform":
        reasons.append("the number of examples is sent and weighs the mean; use fedavg(weights=uniform)")
    for mechanism in method.mechanisms:
        if mechanism.uploads and not isinstance(mechanism, Proximal):
            reasons.append(f"{mechanism.name} sends {', '.join(mechanism.uploads)}, which gets no noise; leave it away")
    if model.initial()[1]:
        reasons.append("batch norm's statistics are sent without noise; use --norm group or a model without batch norm")
    if config.forgetting != "off" or options.probe:
        reasons.append("the forgetting meter sends exact counts; use --forgetting off")
    return reasons
