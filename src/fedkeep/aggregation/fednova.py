"""FedNova: normalised averaging."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from fedkeep.method import Aggregator
from fedkeep.tree import scale


@dataclass(frozen=True)
class FedNova(Aggregator):
    """Average the clients' steps instead of their distances, so that who steps more does not count more.

    Wang et al. 2020, "Tackling the Objective Inconsistency Problem", Eq. (6), (7):

        d_k = (w_t - w_t^k) / a_k,   tau_eff = sum_k p_k a_k,   w_{t+1} = w_t - tau_eff sum_k p_k d_k

    a_k is how far a constant unit gradient would have moved the client's weights: the number of local steps for
    plain SGD, more with momentum, less with a proximal pull. Equal a_k make it FedAvg.
    Differs from the paper: with a local Adam, a_k is the number of steps.
    Sends: the trained model, the number of examples and a_k.
    """

    name = "fednova"

    def check(self, plan, cohort=None):
        if plan.optimizer.name != "sgd":
            warnings.warn(
                f"fednova is derived for SGD; with {plan.optimizer.name} it normalises by the number of steps",
                stacklevel=2,
            )

    def factor(self, facts):
        return self.raw_weight(facts) / facts.effort

    def finish(self, total, facts):
        examples = sum(self.raw_weight(fact) for fact in facts)
        tau_eff = sum(self.raw_weight(fact) * fact.effort for fact in facts) / examples
        return scale(total, tau_eff / examples)
