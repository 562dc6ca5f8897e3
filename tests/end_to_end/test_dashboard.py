"""`secureafl dashboard` in a real browser, over real runs."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, urlopen

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect
from tests.end_to_end.browser import CLI, chromium, dashboard
from tests.end_to_end.child_processes import Process
from tests.server.recorded_runs import LIARS, record
from tests.view.journals import write_arrivals

from secureafl.server.record.address import RunUrl
from secureafl.server.record.postgres import PostgresStore
from secureafl.server.record.store import StandbyReport
from secureafl.text import visible

pytestmark = pytest.mark.end_to_end

ROOT = Path(__file__).parents[2]
PATIENCE = 60_000
NUM_ARRIVALS = 300
HOSTILE = """<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>&lt;b&gt;'"</td>\x1b[2J\u202e"""
SHOWN = visible(HOSTILE)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


def is_fault(message: ConsoleMessage) -> bool:
    """Whether a page did wrong, as by what its policy forbids; that a server is gone or says no is not its fault."""
    return message.type == "error" and not message.text.startswith("Failed to load resource")


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    context.set_default_timeout(PATIENCE)
    expect.set_options(timeout=PATIENCE)
    faults: list[str] = []
    opened = context.new_page()
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.on("console", lambda message: faults.append(message.text) if is_fault(message) else None)
    yield opened
    context.close()
    assert faults == []


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with liars in it."""
    run = tmp_path_factory.mktemp("attacked") / "run"
    record(run, NUM_ARRIVALS).journal.close()
    return run


@pytest.fixture(scope="module")
def address(attacked: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with dashboard(attacked, tmp_path_factory.mktemp("log") / "dashboard.txt") as found:
        yield found


def command(*words: str) -> str:
    return subprocess.run([*CLI, *words], capture_output=True, text=True, check=True, timeout=300).stdout


def figure(page: Page, tile: str) -> int:
    text = page.locator(f"#{tile} dd").evaluate("node => node.firstChild.textContent")
    return int(text.replace(",", ""))


def clients(page: Page) -> list[str]:
    return page.locator("#clients tbody tr td:first-child").all_inner_texts()


def test_the_overview_shows_the_figures_of_the_audit(page: Page, address: str, attacked: Path) -> None:
    audited = json.loads(command("audit", str(attacked), "--json"))
    page.goto(address)
    expect(page.locator("#worst tbody tr").first).to_be_visible()
    assert figure(page, "tile-version") == sum(client["arrivals"] for client in audited) == NUM_ARRIVALS
    assert figure(page, "tile-accepted") == sum(client["accepted"] for client in audited)
    assert figure(page, "tile-rejected") == sum(sum(client["rejected"].values()) for client in audited)
    assert figure(page, "tile-clients") == len(audited)
    worst = page.locator("#worst tbody tr td:first-child").all_inner_texts()
    assert worst == [client["client"] for client in audited if client["rejected"]][:8]
    for chart in ("verdicts", "judged", "staleness", "rate"):
        drawn = page.locator(f"#chart-{chart} canvas")
        expect(drawn).to_be_visible()
        assert drawn.evaluate(
            "node => new Set(node.getContext('2d').getImageData(0, 0, node.width, node.height).data).size > 8"
        ), f"{chart} is blank"
    page.select_option("#along", "updates")
    expect(page.locator("#chart-verdicts .note")).to_have_text("One bar is 5 updates.")


def test_counts_rise_while_another_process_records(page: Page, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = [sys.executable, "-m", "tests.end_to_end.crash_worker", str(run), "1000000"]
    worker = Process(words, {"PYTHONPATH": f"{ROOT}/src:{ROOT}", "PATH": ""}, tmp_path / "worker.txt")
    try:
        worker.wait_ready(lambda: "at 10\n" in worker.log.read_text(), 300.0)
        with dashboard(run, tmp_path / "dashboard.txt") as address:
            loads: list[str] = []
            page.on("framenavigated", lambda frame: loads.append(frame.url))
            page.goto(address)
            expect(page.locator("#state")).to_have_text("live")
            expect(page.locator("#worst")).to_be_visible()
            seen = [figure(page, "tile-version")]
            for _ in range(3):
                expect(page.locator("#tile-version dd")).not_to_contain_text(f"{seen[-1]:,}after")
                seen.append(figure(page, "tile-version"))
            assert seen == sorted(set(seen)), "counts rise"
            assert len(loads) == 1, "the page was not loaded again"
    finally:
        worker.kill()


def test_clients_are_sorted_and_filtered(page: Page, address: str) -> None:
    page.goto(f"{address}clients")
    expect(page.locator("#clients tbody tr")).to_have_count(8)
    assert set(clients(page)[:2]) == {f"client-{k}" for k in LIARS}, "the least believed come first"
    page.get_by_role("button", name="Client", exact=True).click()
    expect(page.locator("#clients th").first).to_have_attribute("aria-sort", "ascending")
    assert clients(page) == [f"client-{k}" for k in range(8)]
    page.get_by_role("button", name="Client", exact=True).click()
    expect(page.locator("#clients th").first).to_have_attribute("aria-sort", "descending")
    assert clients(page) == [f"client-{k}" for k in range(7, -1, -1)]
    page.fill("#filter", "CLIENT-3")
    expect(page.locator("#found")).to_have_text("1 of 8 clients")
    assert clients(page) == ["client-3"]
    page.reload()
    expect(page.locator("#clients tbody tr")).to_have_count(1)
    page.fill("#filter", "nobody")
    expect(page.locator(".empty")).to_have_text("No client's name contains that.")


def test_one_client_and_one_verdict_in_the_words_of_the_audit(page: Page, address: str, attacked: Path) -> None:
    page.goto(f"{address}clients")
    page.get_by_role("link", name=f"client-{LIARS[0]}", exact=True).click()
    expect(page.locator("#name")).to_have_text(f"client-{LIARS[0]}")
    expect(page.locator("#chart-judged canvas")).to_be_visible()
    page.check("#only-rejected")
    expect(page.locator("#verdicts .badge:not(.bad)")).to_have_count(0)
    link = page.locator("#verdicts tr", has_text="too-long").locator("a").first
    update = link.inner_text()
    link.click()
    expect(page.locator("h1")).to_have_text(f"Update {update}")
    words = page.locator("#words p").all_inner_texts()
    assert " ".join(words) == " ".join(command("audit", str(attacked), "--update", update).split())
    assert "It was rejected: it was many times as long as is usual" in words[1]
    evidence = page.locator("#evidence tbody tr")
    assert {"norm", "vote", "steps_left"} <= set(evidence.locator("td:first-child").all_inner_texts())
    page.goto(f"{address}verdict?update={NUM_ARRIVALS}")
    expect(page.locator("main")).to_contain_text("The run has no such update.")


def test_light_and_dark(page: Page, address: str) -> None:
    def brightness() -> int:
        found = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(int(part) for part in re.findall(r"\d+", found)[:3])

    page.emulate_media(color_scheme="dark")
    page.goto(address)
    assert brightness() < 200
    page.emulate_media(color_scheme="light")
    assert brightness() > 600
    page.select_option("#theme", "dark")
    assert brightness() < 200
    page.reload()
    assert brightness() < 200, "the choice is kept"
    page.select_option("#theme", "system")
    assert brightness() > 600


def test_a_hostile_name_stays_text_on_every_page(page: Page, tmp_path: Path) -> None:
    run = write_arrivals(tmp_path / "run", 40, clients=(HOSTILE, "b", "c"))
    with dashboard(run, tmp_path / "dashboard.txt") as address:
        for place, where in (
            ("", "#worst"),
            ("clients", "#clients"),
            (f"client?{urlencode({'name': HOSTILE})}", "#name"),
            ("verdict?update=3", "#words"),
        ):
            page.goto(address + place)
            expect(page.locator(where)).to_contain_text(SHOWN)
            assert page.locator("main img, main script, main b").count() == 0
            assert page.evaluate("window.pwned") is None
        page.goto(f"{address}clients")
        page.get_by_role("link", name=SHOWN, exact=True).click()
        expect(page.locator("#name")).to_have_text(SHOWN)


def test_nothing_is_asked_of_another_host_and_nothing_is_written(page: Page, address: str, attacked: Path) -> None:
    before = {file: file.read_bytes() for file in attacked.rglob("*") if file.is_file()}
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for place in ("", "clients", "client?name=client-0", "verdict?update=7"):
        page.goto(address + place)
        expect(page.locator("table.data").first).to_be_visible()
    assert len(asked) > 20
    assert {urlsplit(url).netloc for url in asked} == {urlsplit(address).netloc}
    assert {file: file.read_bytes() for file in attacked.rglob("*") if file.is_file()} == before


def test_bound_to_other_addresses_it_asks_for_its_token(browser: Browser, attacked: Path, tmp_path: Path) -> None:
    with dashboard(attacked, tmp_path / "dashboard.txt", "--host", "0.0.0.0") as printed:
        parts = urlsplit(printed)
        assert len(parts.query.removeprefix("token=")) >= 32
        here = f"http://127.0.0.1:{parts.port}/"
        context = browser.new_context()
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        for place in ("", "api/summary", "api/stream", "static/style.css", "?token=wrong"):
            refused = page.goto(here + place)
            assert refused is not None
            assert refused.status == 401
        page.goto(f"{here}?{parts.query}")
        expect(page.locator("#tile-version dd")).to_contain_text(str(NUM_ARRIVALS))
        assert page.url == here, "the token is out of the address"
        page.goto(f"{here}clients")
        expect(page.locator("#clients tbody tr")).to_have_count(8)
        context.close()
        asked = Request(f"{here}api/summary", headers={"Authorization": f"Bearer {parts.query.removeprefix('token=')}"})
        with urlopen(asked, timeout=30) as answer:
            assert json.load(answer)["tick"]["version"] == NUM_ARRIVALS


def test_a_run_without_arrivals_says_so(page: Page, tmp_path: Path) -> None:
    run = write_arrivals(tmp_path / "run", 0)
    with dashboard(run, tmp_path / "dashboard.txt") as address:
        page.goto(address)
        expect(page.locator("main .empty")).to_contain_text("No update has arrived yet.")


def test_on_a_phone_nothing_is_wider_than_the_screen(page: Page, address: str) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    for place in ("", "clients", "client?name=client-0", "verdict?update=7"):
        page.goto(address + place)
        expect(page.locator("table.data").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.goto(address + "clients")
    table = page.locator("table.data")
    expect(table).to_be_visible()
    box = table.bounding_box()
    assert box is not None
    assert box["x"] + box["width"] <= 390, "why a client was rejected is seen without scrolling"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs: the same arrivals under two defenses, and one with a hostile name of a client."""
    place = tmp_path_factory.mktemp("runs")
    for defense in ("secureafl", "asyncsgd"):
        record(place / "attacked" / defense, 120, defense=defense).journal.close()
    write_arrivals(place / "other", 40, clients=(HOSTILE, "b", "c"))
    return place


@pytest.fixture(scope="module")
def folder_address(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with dashboard(folder, tmp_path_factory.mktemp("log") / "dashboard.txt") as found:
        yield found


def runs(page: Page) -> list[str]:
    return page.locator("#runs tbody tr td:nth-child(2)").all_inner_texts()


def test_a_folder_of_runs_is_listed_filtered_and_sorted(page: Page, folder_address: str) -> None:
    page.goto(folder_address)
    expect(page.locator("#runs tbody tr")).to_have_count(3)
    assert runs(page) == ["attacked/asyncsgd", "attacked/secureafl", "other"]
    page.select_option("#defense-filter", "asyncsgd")
    expect(page.locator("#found")).to_have_text("1 of 3 runs")
    page.select_option("#defense-filter", "")
    page.fill("#filter", "ATTACKED")
    expect(page.locator("#found")).to_have_text("2 of 3 runs")
    page.get_by_role("button", name="Accepted", exact=True).click()
    assert runs(page) == ["attacked/secureafl", "attacked/asyncsgd"]
    page.reload()
    expect(page.locator("#found")).to_have_text("2 of 3 runs")
    page.get_by_role("link", name="attacked/secureafl", exact=True).click()
    expect(page.locator("#tile-version dd")).to_contain_text("120")
    page.get_by_role("link", name="Clients", exact=True).click()
    page.get_by_role("link", name="client-3", exact=True).click()
    for chart in ("vote", "steps"):
        expect(page.locator(f"#chart-{chart} canvas")).to_be_visible()
    page.get_by_role("link", name="Runs", exact=True).click()
    expect(page.locator("h1")).to_have_text("Runs")


def test_curves_are_laid_over_each_other_and_verdicts_stand_side_by_side(page: Page, folder_address: str) -> None:
    page.goto(folder_address)
    page.get_by_label("Lay over: attacked/secureafl").check()
    expect(page.locator("#chart-share canvas")).to_be_visible()
    assert page.locator("#compare").count() == 0
    page.get_by_label("Lay over: attacked/asyncsgd").check()
    expect(page.locator("#chart-share .u-legend .u-series")).to_have_count(3)  # with the one along x
    labels = page.locator("#chart-share .u-legend .u-series .u-label").all_inner_texts()
    assert labels[1:] == ["attacked/secureafl", "attacked/asyncsgd"]
    page.locator("#compare").click()
    expect(page.locator("#verdicts tbody tr").first).to_be_visible()
    rejected = int(page.locator("#count-b dd").evaluate("node => node.firstChild.textContent"))
    assert rejected > 0
    expect(page.locator("#found")).to_have_text(f"{rejected} updates")
    for row in page.locator("#verdicts tbody tr").all()[:5]:
        badges = row.locator(".badge")
        assert "bad" in (badges.nth(0).get_attribute("class") or "")
        assert badges.nth(1).inner_text() == "accepted"
    assert set(page.locator("#clients tbody tr td:first-child").all_inner_texts()[:2]) == {f"client-{k}" for k in LIARS}
    page.uncheck("#only-differing")
    expect(page.locator("#found")).to_have_text("120 updates")
    page.locator("#verdicts tbody a").first.click()
    expect(page.locator("h1")).to_contain_text("Update ")


def test_a_new_run_appears_in_an_open_list_and_a_broken_one_says_so(page: Page, tmp_path: Path) -> None:
    write_arrivals(tmp_path / "runs" / "one", 8)
    with dashboard(tmp_path / "runs", tmp_path / "dashboard.txt") as address:
        page.goto(address)
        expect(page.locator("#runs tbody tr")).to_have_count(1)
        write_arrivals(tmp_path / "runs" / "two", 8)
        (tmp_path / "runs" / "broken").mkdir()
        (tmp_path / "runs" / "broken" / "run.db").write_bytes(b"no database")
        expect(page.locator("#runs tbody tr")).to_have_count(3)
        expect(page.locator("#runs tr", has_text="broken").locator(".badge")).to_have_text("cannot be read")
        assert page.get_by_label("Lay over: broken").is_disabled()


def test_pages_of_a_folder_fit_a_phone_and_keep_hostile_names_text(page: Page, folder_address: str) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    for place in ("", "?run=other&run=attacked~secureafl", "compare?a=other&b=attacked~secureafl", "run/other/clients"):
        page.goto(folder_address + place)
        expect(page.locator("table.data").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert page.evaluate("window.pwned") is None
    page.goto(f"{folder_address}compare?a=other&b=attacked~secureafl&only=all")
    expect(page.locator("#verdicts")).to_contain_text(SHOWN)
    assert page.locator("main img, main script, main b").count() == 0
    page.goto(f"{folder_address}compare?a=other&b=nobody")
    expect(page.locator("main")).to_contain_text("there is no run 'nobody'")


def test_standbys_and_how_far_they_are_behind_are_shown(page: Page, run_url: RunUrl, tmp_path: Path) -> None:
    record(run_url, 20).journal.close()
    standbys = PostgresStore(run_url).succession
    standbys.report(StandbyReport("pid 1 on a", 40, 0, 0.0, can_lead=True))
    standbys.report(StandbyReport("pid 2 on b", 37, 3, 0.5, can_lead=False))
    with dashboard(run_url, tmp_path / "dashboard.txt") as shown:
        page.goto(shown)
        expect(page.locator("#tile-standbys")).to_contain_text("3 rows behind")
        expect(page.locator("#tile-standbys dd")).to_contain_text("2")
