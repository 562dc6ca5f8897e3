"""Scrapes of a metrics endpoint, read by Prometheus' own parser."""

import urllib.request

from prometheus_client.parser import text_string_to_metric_families


def scrape(url: str) -> dict[str, float]:
    """Every sample: `name{label=value}{…}` -> its figure."""
    with urllib.request.urlopen(url, timeout=5.0) as answer:
        text = answer.read().decode()
    return {
        sample.name + "".join(f"{{{key}={value}}}" for key, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
