import pytest

from secureafl.engines.flower import FlowerSettings, read_run_config
from secureafl.errors import UnknownSettingError


def test_the_secureafl_table_of_a_run_config_is_read() -> None:
    settings = read_run_config(
        {
            "batch-size": 32,
            "secureafl.defense": "kardam",
            "secureafl.defense-settings.malicious-fraction": 0.3,
            "secureafl.stop-after-updates": 10,
            "secureafl.max_in_flight": 4,
            "secureafl.run-dir": "",
        }
    )
    assert settings == FlowerSettings(
        defense="kardam", defense_settings={"malicious_fraction": 0.3}, stop_after_updates=10, max_in_flight=4
    )


def test_changes_win_over_the_run_config() -> None:
    assert read_run_config({"secureafl.defense": "kardam"}, defense="asyncsgd").defense == "asyncsgd"


def test_a_misspelt_key_is_an_error_not_an_undefended_run() -> None:
    with pytest.raises(UnknownSettingError, match="did you mean 'defense'"):
        read_run_config({"secureafl.defence": "secureafl"})


def test_a_misspelt_setting_of_the_defense_is_an_error_too() -> None:
    settings = read_run_config({"secureafl.defense-settings.percentil": 0.5})
    with pytest.raises(UnknownSettingError, match="did you mean 'percentile'"):
        settings.make_defense(3)
