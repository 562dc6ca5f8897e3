"""Write the golden records anew: `python -m tests.golden.make [NAME …]`, from the project's root.

Only a change that is meant to change numbers may do this. It goes into the changelog with before and after.

`NAME` may also be that of a run of the present version (`run-0.2.0`): once its version is released, a run is never made
again. The package has to be installed in that version, which is written into the run.
"""

import json
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from tests.golden.recorded import BEGUN, ENDED, RUNS, Recorded, fingerprint, written
from tests.golden.scenario import CONFIGURATIONS, RECORDS, play

from secureafl import __version__


def make_run(recorded: Recorded) -> Path:
    """The folder that a server left which died, and what became of it."""
    assert recorded.version == __version__, f"{recorded.name} is of {recorded.version}"
    shutil.rmtree(recorded.folder, ignore_errors=True)
    run = recorded.begin(recorded.folder)
    recorded.go_on(run, BEGUN)
    run.close()
    (recorded.folder / "lock").unlink()  # it names a process of this machine
    with tempfile.TemporaryDirectory() as folder:
        resumed = recorded.resume(Path(shutil.copytree(recorded.folder, Path(folder) / "run")))
        at_resume = fingerprint(resumed.machine)
        recorded.go_on(resumed, ENDED)
        expected = written(resumed, recorded.folder, at_resume)
        resumed.close()
    recorded.expected.write_text(json.dumps(expected, indent=1) + "\n")
    return recorded.folder


def make_record(name: str) -> Path:
    path = RECORDS / f"{name}.json"
    path.write_text(json.dumps(asdict(play(name)), indent=1) + "\n")
    return path


if __name__ == "__main__":
    runs = {recorded.name: recorded for recorded in RUNS}
    for name in sys.argv[1:] or CONFIGURATIONS:
        made = make_run(runs[name]) if name in runs else make_record(name)
        sys.stdout.write(f"{made}\n")
