import pytest
from typer.testing import CliRunner

from secureafl import __version__
from secureafl.cli import app
from secureafl.defenses import DEFENSES

runner = CliRunner()


def test_help_says_what_it_is_and_where_to_start() -> None:
    result = runner.invoke(app, ["--help"])
    assert result.exit_code == 0
    assert "some clients lie" in result.output
    assert "secureafl defenses" in result.output


def test_no_arguments_show_the_help() -> None:
    assert "Usage" in runner.invoke(app, []).output


def test_version() -> None:
    assert runner.invoke(app, ["--version"]).output == f"secureafl {__version__}\n"


def test_defenses_are_listed() -> None:
    result = runner.invoke(app, ["defenses"])
    assert result.exit_code == 0
    assert all(name in result.output for name in DEFENSES)


@pytest.mark.parametrize("name", DEFENSES)
def test_each_defense_shows_all_its_settings(name: str) -> None:
    result = runner.invoke(app, ["defenses", name])
    assert result.exit_code == 0
    for key in DEFENSES[name].settings.model_fields:
        assert key in result.output


def test_a_misspelt_defense_is_met_with_the_nearest() -> None:
    result = runner.invoke(app, ["defenses", "kardan"])
    assert result.exit_code == 2
    assert "did you mean 'kardam'?" in result.output
