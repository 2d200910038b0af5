"""Environments for language-model agents whose dynamics are a harness: `gym.make("whale/SearchQA")`.

Importing this package registers `whale/SearchQA`, `whale/Math` and `whale/Chess` with Gymnasium.
"""

import gymnasium

from whale_envs.domain import Domain, World
from whale_envs.domains import DOMAINS, load_domain
from whale_envs.env import HarnessEnv
from whale_envs.episode import Episode, Reply, Verdict, read_episodes, write_episodes
from whale_envs.errors import EpisodeError, ToolUseError, UserError
from whale_envs.harness.load import Harness, load_harness
from whale_envs.task import Splits, Task, TaskSet
from whale_envs.vector import HarnessVectorEnv

__version__ = "0.1.0"
__all__ = [
    "DOMAINS",
    "Domain",
    "Episode",
    "EpisodeError",
    "Harness",
    "HarnessEnv",
    "HarnessVectorEnv",
    "Reply",
    "Splits",
    "Task",
    "TaskSet",
    "ToolUseError",
    "UserError",
    "Verdict",
    "World",
    "load_domain",
    "load_harness",
    "read_episodes",
    "write_episodes",
]

for _name, _place in DOMAINS.items():
    gymnasium.register(
        id=_place.id,
        entry_point="whale_envs.env:HarnessEnv",
        vector_entry_point="whale_envs.vector:HarnessVectorEnv",
        kwargs={"domain": _name},
    )
