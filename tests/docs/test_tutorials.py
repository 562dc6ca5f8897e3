"""The tutorials, as a reader follows them."""

import re
import shutil
from pathlib import Path

import pytest
from tests.docs.pages import ROOT, follow
from tests.end_to_end.flower_processes import Simulation

TUTORIALS = ROOT / "docs" / "tutorials"


def test_a_page_that_is_wrong_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```python\n# a/b.py\nprint(6 * 7)\n```\n\n```console\n$ python a/b.py\n42\n$ false || cd a\n$ ls\nb.py\n```\n"
    )
    assert follow(page, tmp_path / "right")[1] == "42\n"
    page.write_text(page.read_text().replace("\n42\n", "\n43\n"))
    with pytest.raises(AssertionError, match="is not as shown"):
        follow(page, tmp_path / "shown")
    page.write_text("```console\n$ false\n```\n")
    with pytest.raises(AssertionError, match=r"page\.md: false"):
        follow(page, tmp_path / "fails")
    page.write_text("```console\n$ echo here; sleep 5\n```\n")
    slow = r"had not ended after 1 s: page\.md: echo here; sleep 5\nhere"
    with pytest.warns(UserWarning, match=slow), pytest.raises(AssertionError, match=slow):
        follow(page, tmp_path / "waits", timeout=1.0)


@pytest.mark.end_to_end
def test_first_federation(tmp_path: Path) -> None:
    follow(TUTORIALS / "first-federation.md", tmp_path)


@pytest.mark.end_to_end
def test_bring_your_own(tmp_path: Path) -> None:
    example = tmp_path / "page" / "here" / "secureafl" / "examples" / "bring-your-own"
    shutil.copytree(ROOT / "examples" / "bring-your-own", example)
    with Simulation(tmp_path / "flower", cwd=example) as engine:
        follow(TUTORIALS / "bring-your-own.md", tmp_path / "page", engine.env)
    mine, after = (example / side / "blobs" / "server_app.py" for side in ("mine", "after"))
    assert mine.read_text().partition("\n")[2] == after.read_text()  # below the comment with the file's name


@pytest.mark.end_to_end
def test_new_app(tmp_path: Path) -> None:
    with Simulation(tmp_path / "flower") as engine:
        follow(TUTORIALS / "new-app.md", tmp_path / "page", engine.env)


@pytest.mark.end_to_end
def test_write_an_attack(tmp_path: Path) -> None:
    outputs = follow(TUTORIALS / "write-an-attack.md", tmp_path)
    shown = [re.findall(r"(\w+): error ([0-9.]+), malicious accepted ([0-9]+)%", output) for output in outputs]
    loud, quiet = ({name: (float(error), int(lies)) for name, error, lies in found} for found in shown if found)
    assert loud["secureafl"][0] < 0.6 < 0.85 < loud["asyncsgd"][0]
    assert loud["secureafl"][1] < 30
    assert quiet["secureafl"][1] < 50 < quiet["asyncsgd"][1]
