"""What `accelerate launch` runs: training on fixed rows, or online, whose curve goes to `<folder>/curve.json`."""

import json
import sys
from pathlib import Path

import tiny_agent
from rsft_runs import OnRows, curve, trainer
from test_rsft_invariants import LR, STEPS


def main(script: str, folder: Path) -> None:
    if script == "rows":
        made = OnRows(STEPS, folder, learning_rate=LR, per_device_train_batch_size=5, save_strategy="steps")
    else:
        harnesses = [tiny_agent.TWO_TURNS, tiny_agent.ONE_TURN]
        made = trainer(folder, harness=harnesses, prompts_per_step=7, max_steps=3, per_device_train_batch_size=2)
    made.train()
    if made.is_world_process_zero():
        updates = [{"loss": update.loss} for update in getattr(made, "updates", [])]
        found = {"processes": made.accelerator.num_processes, "steps": curve(made), "updates": updates}
        (folder / "curve.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
