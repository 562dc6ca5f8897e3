"""A newcomer finds a thing by its name: one name for one module, and rooms that say what is in them."""

from collections import defaultdict
from pathlib import Path

import secureafl

PACKAGE = Path(*secureafl.__path__)
ENGINES = {("engines", "flower"), ("engines", "nvflare")}


def test_no_two_modules_share_a_name_unless_they_do_the_same_job_for_two_engines() -> None:
    rooms = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        if path.stem != "__init__":
            rooms[path.stem].add(path.relative_to(PACKAGE).parent.parts)
    shared = {name: places for name, places in rooms.items() if len(places) > 1}
    assert {name: places for name, places in shared.items() if places != ENGINES} == {}


def test_every_room_says_what_is_in_it() -> None:
    for path in PACKAGE.rglob("__init__.py"):
        assert path.read_text().startswith('"""'), path


def test_no_class_of_the_package_shares_its_name_with_another() -> None:
    places = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        for line in path.read_text().splitlines():
            if line.startswith("class ") and not line.startswith("class _"):
                places[line.removeprefix("class ").partition("(")[0].partition(":")[0].partition("[")[0]].append(
                    path.name
                )
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
