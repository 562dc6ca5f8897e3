"""What the READMEs show."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["README.md", "examples/stop-an-attack/README.md"])
def test_the_picture_of_the_attack_is_there_and_small(page: str) -> None:
    pictures = re.findall(r'(?:src|srcset)="([^"]+)"', (ROOT / page).read_text())
    assert len(pictures) == 2
    assert all((ROOT / page).parent.joinpath(picture).stat().st_size < 200_000 for picture in pictures)


def test_every_example_has_a_readme_and_is_listed() -> None:
    listed = (ROOT / "examples" / "README.md").read_text()
    for folder in (path for path in (ROOT / "examples").iterdir() if path.is_dir()):
        assert (folder / "README.md").exists()
        assert f"({folder.name})" in listed
