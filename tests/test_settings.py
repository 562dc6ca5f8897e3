import pytest

from secureafl.defenses import DEFENSES, BASGDSettings, SecureAFLSettings
from secureafl.engines.flower import FlowerSettings
from secureafl.errors import SettingsError, UnknownSettingError
from secureafl.server import FederationSettings, MachineSettings
from secureafl.settings import Settings, read_assignments

EVERY_SETTINGS_CLASS: list[type[Settings]] = [
    *(entry.settings for entry in DEFENSES.values()),
    MachineSettings,
    FederationSettings,
    FlowerSettings,
]


def misspelt(key: str) -> str:
    return key[:-2] + key[-1] + key[-2] + "x"


@pytest.mark.parametrize("settings", EVERY_SETTINGS_CLASS, ids=lambda cls: cls.__name__)
def test_every_misspelt_setting_names_the_nearest_valid_one(settings: type[Settings]) -> None:
    for key in settings.model_fields:
        with pytest.raises(UnknownSettingError, match=rf"{settings.__name__}.*did you mean '{key}'\?"):
            settings(**{misspelt(key): 1})
        with pytest.raises(UnknownSettingError, match=rf"did you mean '{key}'\?"):
            settings.model_validate({misspelt(key): 1})


@pytest.mark.parametrize("settings", EVERY_SETTINGS_CLASS, ids=lambda cls: cls.__name__)
def test_a_key_like_nothing_known_lists_what_is_known(settings: type[Settings]) -> None:
    with pytest.raises(UnknownSettingError, match="it knows: "):
        settings.model_validate({"zzzzqqqq": 1})


@pytest.mark.parametrize("settings", EVERY_SETTINGS_CLASS, ids=lambda cls: cls.__name__)
def test_every_setting_is_documented(settings: type[Settings]) -> None:
    for key, field in settings.model_fields.items():
        assert field.description, f"{settings.__name__}.{key} has no docstring"


@pytest.mark.parametrize("settings", EVERY_SETTINGS_CLASS, ids=lambda cls: cls.__name__)
def test_settings_cannot_be_changed_afterwards(settings: type[Settings]) -> None:
    made = settings()
    for key in settings.model_fields:
        with pytest.raises(ValueError, match="frozen"):
            setattr(made, key, getattr(made, key))


def test_a_value_out_of_bounds_names_setting_value_and_bound() -> None:
    with pytest.raises(SettingsError, match=r"SecureAFLSettings: percentile = 1.5: .*less than or equal to 1"):
        SecureAFLSettings(percentile=1.5)


def test_a_word_that_is_no_choice_names_the_choices() -> None:
    with pytest.raises(SettingsError, match=r"correction = 'wild': .*'none', 'raw', 'bounded' or 'calibrated'"):
        SecureAFLSettings(correction="wild")  # type: ignore[arg-type]


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(SettingsError, match="num_trimmed = 5 leaves nothing of num_buffers = 10"):
        BASGDSettings(aggregate="trimmed_mean", num_trimmed=5)


def test_assignments_are_read_as_json_or_text_and_may_reach_into_parts() -> None:
    texts = ["rounds=3", "attack=scaling", "defense-settings.percentile=0.6", "defense_settings.lead=0", "window=null"]
    assert read_assignments(texts) == {
        "rounds": 3,
        "attack": "scaling",
        "defense_settings": {"percentile": 0.6, "lead": 0},
        "window": None,
    }


@pytest.mark.parametrize("texts", [["rounds"], ["=3"], ["part=1", "part.key=2"]])
def test_what_is_no_assignment_is_named(texts: list[str]) -> None:
    with pytest.raises(SettingsError, match=texts[-1]):
        read_assignments(texts)
