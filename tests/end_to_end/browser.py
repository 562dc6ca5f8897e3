"""The system's Chromium, and `secureafl dashboard` as a process for it to look at."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright
from tests.end_to_end.child_processes import Process

from secureafl.server.record.address import Place

CLI = [sys.executable, "-c", "from secureafl.cli import app; app()"]
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
START_SECONDS = 120.0


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A headless browser, the one that is installed on this machine."""
    path = next((found for name in NAMES if (found := shutil.which(name))), None)
    assert path is not None, "these tests need Chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextlib.contextmanager
def dashboard(run: Place, log: Path, *options: str) -> Iterator[str]:
    """The address that a dashboard of this run prints, as long as it serves."""
    environment = {**os.environ, "COLUMNS": "200"}
    process = Process([*CLI, "dashboard", str(run), "--port", "0", *options], environment, log)
    try:
        process.wait_ready(lambda: "shown at " in log.read_text(), START_SECONDS)
        address = re.search(r"shown at (\S+)", log.read_text())
        assert address is not None
        yield address[1]
    finally:
        process.stop()
