"""Links between the repository's own pages. Those within docs/ are checked when it is built."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", *map(str, (ROOT / "examples").rglob("*.md"))]


@pytest.mark.parametrize("page", [(ROOT / page).relative_to(ROOT) for page in PAGES], ids=str)
def test_a_page_links_to_what_exists(page: Path) -> None:
    text = (ROOT / page).read_text()
    targets = [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if not re.match(r"\w+:|#", target)]
    missing = [target for target in targets if not (ROOT / page).parent.joinpath(target.partition("#")[0]).exists()]
    assert not missing
