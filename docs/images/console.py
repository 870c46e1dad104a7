"""Draws docs/images/console.svg: the live view of a run at one of its steps, from the run's directory.

python docs/images/console.py RUN STEP
"""

from __future__ import annotations

import io
import json
import re
import sys
import tomllib
from pathlib import Path

from rich.console import Console

from purerl.monitoring.console.view import View
from purerl.report.read import max_steps
from purerl.store.rollouts import read_rollouts, total_reward

OUTPUT = Path(__file__).with_suffix(".svg")


def main(run: Path, step: int) -> None:
    """Draw the view as it was after `step`."""
    config = tomllib.loads((run / "config.toml").read_text(encoding="utf-8"))
    title = f"{config['algorithm']['kind']}, {config['model']['path']}"
    view, seconds = View(config["name"], max_steps(run, config), title), 0.0
    for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[: step + 1]:
        record = json.loads(line)
        seconds += record.get("time/step", 0.0) + record.get("time/evaluate", 0.0)
        view.update(record, seconds=seconds)
    rows = read_rollouts(run / "rollouts", step)
    view.rows = [row | {"reward": total_reward(row)} for row in rows[:: max(1, len(rows) // 8)]]
    console = Console(record=True, file=io.StringIO(), width=110, height=40, force_terminal=True)
    console.print(view)
    drawn = console.export_svg(title="purerl train")
    # Remove the fonts, which a browser would load from the network.
    OUTPUT.write_text(re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL), encoding="utf-8")
    print(f"{OUTPUT}  {OUTPUT.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
