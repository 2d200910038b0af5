"""Isolation of code that nobody trusts: what a model writes for the code tool, and what a proposer writes as a harness.

See README.md in this directory for what is contained and what is not.
"""

from whale_envs.sandbox.isolation import allow_unsafe, is_unsafe, tier
from whale_envs.sandbox.pool import Pool
from whale_envs.sandbox.session import Session

__all__ = ["Pool", "Session", "allow_unsafe", "is_unsafe", "tier"]
