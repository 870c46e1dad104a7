"""``python -m tests.security.served_run FOLDER TRANSFER``: a generator with a server, which gets weights and samples.

Before each of `STEPS` steps it waits for a file of the test, as tests/cli/rewards.py does.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from tests.security.runs import STEPS
from tests.serving.toys import WEIGHTS, Toy, completions, requests, toys

NUM_REQUESTS = 20


def main(folder: Path, transfer: str) -> None:
    (folder / "run").mkdir()
    results = []
    with toys(folder / "run", Toy(("--seconds", "0.002")), weight_transfer=transfer, are_started=True) as generator:
        for step in range(1, STEPS + 1):
            (folder / "gate" / f"waiting-{step}").touch()
            while not (folder / "gate" / f"release-{step}").exists():
                time.sleep(0.01)
            generator.load_weights(WEIGHTS, version=step)
            generator.submit(requests(NUM_REQUESTS))
            found = completions(generator, NUM_REQUESTS)
            results.append([[*found[key].tokens, *found[key].version] for key in sorted(found)])
    (folder / "run/results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
