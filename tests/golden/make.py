"""Write the golden records anew: `python -m tests.golden.make [NAME …]`, from the project's root.

Only a change that is meant to change numbers may do this. It goes into the changelog with before and after.
"""

import json
import sys
from dataclasses import asdict

from tests.golden.scenario import CONFIGURATIONS, RECORDS, play

if __name__ == "__main__":
    for name in sys.argv[1:] or CONFIGURATIONS:
        path = RECORDS / f"{name}.json"
        path.write_text(json.dumps(asdict(play(name)), indent=1) + "\n")
        sys.stdout.write(f"{path}\n")
