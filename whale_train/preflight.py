"""A few episodes before anything is spent: whether policy and harness work together at all.

A failed episode is data, but a harness that fails every time, or a policy that never says anything, is a mistake to
hear of now and not after hours. The episodes are of the weight split, and leave no trace.
"""

from __future__ import annotations

from whale_envs import Domain, Harness
from whale_envs.errors import UserError
from whale_train.policies.base import Policy
from whale_train.rollout import rollout

#: Tasks played, once each; few, since a harness that loops for ever costs 10 s of each.
TASKS = 2


def preflight(policy: Policy, domain: Domain, harness: Harness) -> None:
    """Raises `UserError` when every episode fails for the same owner, the harness never asks the policy, or the policy
    says nothing in any of them."""
    episodes = rollout(policy, domain, harness, domain.splits.weight[:TASKS], "weight", seed=0)
    failures = [e.failure for e in episodes if e.failure is not None]
    if len(failures) == len(episodes) and len({f.owner for f in failures}) == 1:
        owner, message = failures[0].owner, " ".join(failures[0].message.split())
        name = {"harness": harness.name, "policy": policy.name}.get(owner, domain.name)
        raise UserError(f"{owner} {name} failed in all of {TASKS} trial episodes ({message}): mend it and run again")
    calls = [call for e in episodes for call in e.calls]
    if not calls and not failures:
        raise UserError(
            f"harness {harness.name} ended {TASKS} trial episodes without asking the model: expected at least one "
            "`reply = yield messages`; mend it and run again"
        )
    if calls and not any(c.reply.text.strip() or c.reply.tool_calls for c in calls):
        raise UserError(
            f"policy {policy.name} returned nothing in {len(calls)} trial calls: expected text; "
            "see that its chat template and end-of-turn token are those that it was trained with"
        )
