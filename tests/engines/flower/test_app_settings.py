import pytest

from secureafl.engines.flower import FlowerSettings, read_run_config
from secureafl.errors import SettingsError, UnknownSettingError


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


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "stop-after-update",
            5,
            "[tool.flwr.app.config.secureafl] has no setting 'stop-after-update'; did you mean 'stop-after-updates'?",
        ),
        (
            "stop_after_update",
            5,
            "[tool.flwr.app.config.secureafl] has no setting 'stop_after_update'; did you mean 'stop-after-updates'?",
        ),
        ("server-lr", -1.0, "secureafl.server-lr = -1.0: Input should be greater than 0"),
        ("stop-at-metric", "accuracy", "stop-at-metric and stop-at-value go together: set both or neither"),
        (
            "defense-settings.min-agreemnt",
            0.5,
            "[tool.flwr.app.config.secureafl.defense-settings] has no setting 'min-agreemnt'; did you mean",
        ),
        ("defense-settings.percentile", 5, "secureafl.defense-settings: percentile = 5: Input should be less than"),
    ],
)
def test_a_mistake_is_told_in_the_users_own_spelling(key: str, value: object, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_run_config({f"secureafl.{key}": value})
    assert str(caught.value).startswith(message)
