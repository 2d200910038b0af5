"""Training and harness search against the `whale_envs` registry."""
