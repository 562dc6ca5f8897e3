"""Goes on with a run that an earlier version left: `python -m tests.end_to_end.upgraded_server NAME RUN`."""

import json
import sys
from pathlib import Path

from tests.golden.recorded import ENDED, RUNS

if __name__ == "__main__":
    recorded = next(found for found in RUNS if found.name == sys.argv[1])
    run = recorded.resume(Path(sys.argv[2]))
    recorded.go_on(run, ENDED)
    run.close()
    print(json.dumps(run.machine.model.params.tolist()))  # noqa: T201
