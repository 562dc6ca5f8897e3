"""A job as NVFlare would send it."""

import json
from pathlib import Path
from typing import Any

import pytest

from secureafl.engines.nvflare import AsyncClient, AsyncServer, NVFlareSettings, federation_recipe
from secureafl.engines.nvflare.functions import load_function
from secureafl.errors import SettingsError


def test_a_job_names_functions_and_carries_their_files_but_not_this_package(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text("")
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "more.py").write_text("")
    server = AsyncServer("task:model", {"server_lr": 0.5}, train_config={"lr": 0.1})
    recipe = federation_recipe(
        "tiny", server, AsyncClient("task:train"), files=[tmp_path / "task.py", tmp_path / "parts"]
    )
    recipe.export(job_dir=str(tmp_path / "job"))
    app = tmp_path / "job" / "tiny" / "app"
    sent = {str(path.relative_to(app / "custom")) for path in (app / "custom").rglob("*.py")}
    assert {"task.py", "parts/more.py"} <= sent
    assert not any(path.startswith("secureafl") for path in sent)
    config = json.loads((app / "config" / "config_fed_server.json").read_text())
    [component] = [entry for entry in config["components"] if "AsyncServer" in entry["path"]]
    assert component["args"] == {"model": "task:model", "settings": {"server_lr": 0.5}, "train_config": {"lr": 0.1}}


def test_mistakes_are_found_before_the_job_is_sent(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="server_lr"):
        AsyncServer("task:model", {"server_rl": 0.5})
    with pytest.raises(SettingsError, match="does not exist"):
        federation_recipe("tiny", AsyncServer("a:b"), AsyncClient("a:c"), files=[tmp_path / "nothing.py"])


def test_a_rule_that_is_sent_with_the_job_is_named_in_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"defense": "sent_rules:Own"}
    AsyncServer("task:model", settings)  # where a job is made, its modules need not be importable
    with pytest.raises(SettingsError, match="there is no module 'sent_rules'"):
        NVFlareSettings(**settings).make_defense(3)
    (tmp_path / "sent_rules.py").write_text(
        "from secureafl.defenses import AsyncSGD\n\n\nclass Own(AsyncSGD):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)  # as NVFlare does with a job's files
    assert type(NVFlareSettings(**settings).make_defense(3)).__name__ == "Own"


@pytest.mark.parametrize("name", ["task", ":train", "task:", "no_such_module:train", "json:no_such", "json:__name__"])
def test_a_name_that_is_no_function_is_an_error(name: str) -> None:
    with pytest.raises(SettingsError):
        load_function(name)
