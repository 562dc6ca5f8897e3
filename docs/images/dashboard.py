"""Takes the picture of the dashboard that the documentation shows.

secureafl lab run --attack scaling --rounds 400 --record runs/lab
secureafl dashboard runs/lab
python docs/images/dashboard.py http://127.0.0.1:8765/ docs/images/dashboard.png

And the one of several runs, which differ in the defense and the attack:

for attack in sign_flip scaling; do for defense in secureafl asyncsgd; do
    secureafl lab run --architecture small-cnn --rounds 400 --attack $attack --defense $defense \\
        --record runs/$attack/$defense --out runs/results
done; done
secureafl dashboard runs
python docs/images/dashboard.py \\
    "http://127.0.0.1:8765/?run=scaling~secureafl&run=scaling~asyncsgd&run=sign_flip~secureafl" \\
    docs/images/dashboard-runs.png light "#overlay"
"""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

WIDTH = 1200
COLOURS = 64


def main(address: str, target: Path, scheme: str = "light", last: str = "#worst") -> None:
    """The page in a PNG, from its top to the end of the part `last`."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(
            viewport={"width": WIDTH, "height": 800}, color_scheme="dark" if scheme == "dark" else "light"
        )
        page.add_init_script("localStorage.setItem('secureafl-along', 'updates')")  # a simulation's clock says little
        page.goto(address)
        page.wait_for_selector(last)
        page.wait_for_timeout(1000)
        bottom = page.locator(last).evaluate("node => node.getBoundingClientRect().bottom")
        picture = page.screenshot(full_page=True, clip={"x": 0, "y": 0, "width": WIDTH, "height": bottom + 16})
        browser.close()
    Image.open(io.BytesIO(picture)).convert("RGB").quantize(COLOURS).save(target, optimize=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:5])
