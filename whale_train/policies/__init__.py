"""Policies: what answers asks."""

from whale_train.policies.base import Policy, PolicyError, Request, Sampling
from whale_train.policies.scripted import ScriptedPolicy

__all__ = ["Policy", "PolicyError", "Request", "Sampling", "ScriptedPolicy"]
