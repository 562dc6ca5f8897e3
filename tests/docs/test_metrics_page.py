"""The page about metrics and the alerts beside it, against the code and a real scrape."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import promql_parser
import pytest
import yaml
from tests.end_to_end.child_processes import HOST, free_port
from tests.scrapes import scrape
from tests.server.recorded_runs import PROBLEM

from secureafl import Layout, Machine
from secureafl.engines.engine_settings import EngineSettings
from secureafl.server import Federation, FederationSettings
from secureafl.server.report.prometheus import DISK_METRICS, METRICS, MetricsServer, TelemetryCollector
from secureafl.server.report.sinks import SINKS
from secureafl.server.standby.metrics import STANDBY_METRICS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "metrics.md").read_text()
EXAMPLE = ROOT / "examples" / "prometheus"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((EXAMPLE / "alerts.yml").read_text())["groups"] for rule in group["rules"]
]


def metrics_table() -> str:
    """The table that belongs on the page."""
    rows = [
        f"| `{metric.name}` | {metric.kind} | {', '.join(f'`{label}`' for label in metric.labels)} | {metric.about} |"
        for metric in METRICS
    ]
    rows += [
        f"| `{name}` | gauge |  | {about} There when `run-dir` is a folder. |" for name, about in DISK_METRICS.items()
    ]
    return "\n".join(["| metric | kind | labels | meaning |", "|---|---|---|---|", *rows])


def standby_table() -> str:
    """The table of what a standby tells."""
    rows = [f"| `{name}` | {kind} | {about} |" for name, (kind, about) in STANDBY_METRICS.items()]
    return "\n".join(["| metric | kind | meaning |", "|---|---|---|", *rows])


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names in a scrape of a server that has taken some answers."""
    settings = FederationSettings(run_dir=tmp_path_factory.mktemp("run"), stop_after_updates=20)
    params = np.zeros(PROBLEM.dim, np.float32)
    machine = Machine(PROBLEM.defense("secureafl"), params, settings.machine())
    layout = Layout.of({"w": params})
    run = Federation(machine, layout, settings, evaluate=lambda arrays: {"mean": float(arrays["w"].mean())})
    server = MetricsServer(TelemetryCollector(run.telemetry, settings.run_dir), host=HOST, port=free_port())
    for k in range(20):
        assignment = run.assign(f"client-{k % 5}")
        assert assignment is not None
        run.deliver(assignment, PROBLEM.gradient(k % 5, assignment.params))
    run.run()
    found = scrape(server.url)
    server.close()
    run.close()
    return {name.partition("{")[0] for name in found}


def test_the_page_has_the_table_of_all_metrics() -> None:
    assert metrics_table() in PAGE, f"put this on the page:\n{metrics_table()}"
    assert standby_table() in PAGE, f"put this on the page:\n{standby_table()}"


def test_the_page_names_every_setting_and_every_sink() -> None:
    for name in ("metrics-port", "metrics-host", "sinks", "sink-seconds"):
        assert name.replace("-", "_") in EngineSettings.model_fields
        assert f"`{name}`" in PAGE
    for kind, entry in SINKS.items():
        assert f"{kind}:{entry.target}" in PAGE


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_is_complete_and_asks_only_for_what_a_scrape_has(rule: dict[str, Any], scraped: set[str]) -> None:
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in {"page", "ticket"}
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["action"]
    assert re.fullmatch(r"\d+[mh]", rule.get("for", "1m"))
    promql_parser.parse(rule["expr"])  # raises for what Prometheus would not take
    metrics = set(re.findall(r"\bsecureafl_\w+|\bup\b", rule["expr"]))
    assert metrics
    assert metrics <= scraped | {"up"}, "`up` is Prometheus' own"
    assert f"`{rule['alert']}`" in PAGE


def test_the_page_names_no_alert_that_is_not_there() -> None:
    assert set(re.findall(r"`(SecureAFL[A-Z]\w+)`", PAGE)) == {rule["alert"] for rule in RULES}


def test_labels_in_alerts_exist() -> None:
    known = {metric.name: set(metric.labels) for metric in METRICS}
    for rule in RULES:
        for name, selector in re.findall(r"\b(secureafl_\w+)\{(.*?)\}", rule["expr"]):
            assert set(re.findall(r"(\w+)[!=]", selector)) <= known[name], rule["alert"]


def test_the_scrape_config_names_the_port_of_the_page_and_the_alerts() -> None:
    config = yaml.safe_load((EXAMPLE / "prometheus.yml").read_text())
    [scrape_config] = config["scrape_configs"]
    [target] = scrape_config["static_configs"][0]["targets"]
    assert f"metrics-port = {target.partition(':')[2]}" in PAGE
    assert [(EXAMPLE / name).exists() for name in config["rule_files"]] == [True]
    assert 'job="secureafl"' in RULES[0]["expr"]
    assert scrape_config["job_name"] == "secureafl"
