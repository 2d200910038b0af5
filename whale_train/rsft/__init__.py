"""Online rejection-sampling fine-tuning (RSFT) on TRL's `SFTTrainer`.

`trainer` is the loop of steps: `play` samples a step's episodes, `select` keeps the accepted ones, `rows` turns them
into token rows, `update` is one optimiser step on some of these, `checkpoint` is what a kill cannot break. `phase` is
the weight phase of a run, which is that trainer.
"""
