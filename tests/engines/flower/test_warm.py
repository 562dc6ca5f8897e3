"""The command `secureafl warm`, with commands that ask for Flower's ClientApp as a SuperExec does."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from secureafl.cli import app

TIMEOUT = 120.0
WARM = [str(Path(sys.executable).with_name("secureafl")), "warm"]


def warm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*WARM, *arguments], capture_output=True, text=True, timeout=TIMEOUT)


def importing_from(folder: Path) -> dict[str, str]:
    """The environment in which modules of this folder are found."""
    return {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}


def test_a_client_app_is_a_fork_of_what_was_imported_and_its_exit_code_comes_back() -> None:
    done = warm(
        "--import", "colorsys", "--", "sh", "-c", "flwr-clientapp --help; echo first $?; flwr-clientapp; echo second $?"
    )
    assert "Run a Flower ClientApp" in done.stdout
    assert "first 0" in done.stdout
    assert "second 2" in done.stdout, "its own arguments are missing"
    assert "--token" in done.stderr
    assert done.returncode == 0


def test_a_fork_has_what_was_imported_and_each_begins_anew(tmp_path: Path) -> None:
    (tmp_path / "seen.py").write_text(
        "import os, sys\n"
        "import flwr.supernode.cli\n"
        "importing, count = os.getpid(), 0\n"
        "def instead():\n"
        "    global count\n"
        "    count += 1\n"
        "    print('forked', os.getpid() != importing, count, sys.argv[1:], flush=True)\n"
        "    os._exit(7) if sys.argv[1] == 'ends' else sys.exit(3)\n"
        "sys.modules['flwr.supernode.cli.flwr_clientapp'].flwr_clientapp = instead\n"
    )
    script = "flwr-clientapp exits; echo $?; flwr-clientapp ends; echo $?"
    done = subprocess.run(
        [*WARM, "--import", "seen", "--", "sh", "-c", script],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        env=importing_from(tmp_path),
    )
    assert done.stdout.split("\n")[:4] == ["forked True 1 ['exits']", "3", "forked True 1 ['ends']", "1"]


def test_who_hangs_when_the_command_has_ended_is_ended(tmp_path: Path) -> None:
    (tmp_path / "hangs.py").write_text(
        "import os, signal, sys, time\n"
        "import flwr.supernode.cli\n"
        "def instead():\n"
        "    signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    open(sys.argv[1], 'w').write(str(os.getpid()))\n"
        "    time.sleep(600.0)\n"
        "sys.modules['flwr.supernode.cli.flwr_clientapp'].flwr_clientapp = instead\n"
    )
    pid = tmp_path / "pid"
    script = f"flwr-clientapp {pid} & while [ ! -s {pid} ]; do sleep 0.1; done"
    with (tmp_path / "log").open("wb") as log:
        subprocess.run(
            [*WARM, "--import", "hangs", "--", "sh", "-c", script],
            stdout=log,
            stderr=log,
            timeout=TIMEOUT,
            env=importing_from(tmp_path),
            check=True,
        )
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_without_the_process_that_forks_the_command_is_flowers_own() -> None:
    script = 'rm "$(dirname "$(command -v flwr-clientapp)")/socket"; flwr-clientapp; echo code $?'
    done = warm("--", "sh", "-c", script)
    assert "usage: flwr-clientapp" in done.stderr
    assert "code 2" in done.stdout


def test_the_commands_exit_code_is_ours() -> None:
    assert warm("--", "sh", "-c", "exit 5").returncode == 5


def test_a_signal_ends_the_command(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    script = f"trap 'echo stopped; exit 4' TERM; touch {ready}; while true; do sleep 0.1; done"
    with subprocess.Popen([*WARM, "--", "sh", "-c", script], stdout=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + TIMEOUT
        while not ready.exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT) == 4
        assert process.stdout is not None
        assert "stopped" in process.stdout.read()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--import", "no_such_module", "--", "sleep", "60"], "cannot import 'no_such_module'"),
        (["--", "no-such-command"], "cannot start 'no-such-command': No such file or directory"),
    ],
)
def test_what_is_wrong_is_said(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["warm", *arguments])
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())


def test_a_module_that_starts_a_thread_is_refused(tmp_path: Path) -> None:
    (tmp_path / "threaded.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    command = [*WARM, "--import", "threaded", "--", "sleep", "60"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, env=importing_from(tmp_path))
    assert done.returncode == 2
    assert "'threaded' starts a thread" in " ".join(done.stderr.split())
