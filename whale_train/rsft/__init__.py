"""The weight phase: online rejection-sampling fine-tuning (RSFT) on TRL's `SFTTrainer`.

`select` keeps the episodes that the verifier accepts, `rows` turns them into token rows, `trainer` makes the
optimiser steps, `phase` runs sampling and training in turn so that a kill anywhere loses nothing.
"""
