import shlex
from typing import Any

import pytest

from secureafl.errors import SettingsError
from secureafl.lab.cells.build import draw_malicious
from secureafl.lab.cells.cell import OF_MINORITY, CellSettings
from secureafl.lab.sweeps.recipes import RECIPES
from secureafl.settings import read_assignments


def test_a_data_set_brings_the_papers_values() -> None:
    assert CellSettings().rounds == 20_000
    assert CellSettings().architecture == "cnn"
    udacity = CellSettings(dataset="udacity")
    assert (udacity.num_clients, udacity.batch_size, udacity.rounds) == (10, 64, 20_000)
    assert udacity.partition == "time-blocks"
    assert CellSettings(dataset="tiny-imagenet").rounds == 80_000


def test_a_text_brings_ours() -> None:
    cell = CellSettings(dataset="king-james")
    assert (cell.architecture, cell.partition, cell.num_clients) == ("char-mlp", "time-blocks", 50)
    assert (cell.rounds, cell.server_lr, cell.target_label) == (5000, 0.1, 25)
    assert "main-king-james" not in RECIPES


def test_a_run_is_evaluated_twenty_times_but_a_short_one_not_as_often() -> None:
    assert CellSettings().evaluate_every == 1000
    assert CellSettings(dataset="tiny-imagenet").evaluate_every == 4000
    assert CellSettings(rounds=400).evaluate_every == 50
    assert CellSettings(rounds=400, evaluate_every=20).evaluate_every == 20


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dataset": "fashion"}, "did you mean 'fashion-mnist'"),
        ({"defense": "kardan"}, "did you mean 'kardam'"),
        ({"attack": "signflip"}, "did you mean 'sign_flip'"),
        ({"attack": "sign_flip", "malicious_fraction": 0.0}, "leaves no one to attack"),
        ({"defense_settings": {"percentil": 0.6}}, "did you mean 'percentile'"),
        ({"dataset": "udacity", "attack": "scaling"}, "needs classes"),
        ({"protocol_settings": {"jitter": 0.0}}, "'paper' has no settings"),
        ({"roundz": 3}, "did you mean 'rounds'"),
        ({"minority_share": 0.2}, "set partition = 'minority'"),
        ({"partition": "minority", "minority_share": 0.001}, "of 50 clients are 0"),
        ({"partition": "minority", "minority_class": 10}, "classes run from 0 to 9"),
        ({"partition": "minority", "dataset": "udacity"}, "udacity has none"),
        (
            {"partition": "minority", "minority_share": 0.6, "malicious_fraction": 0.5, "attack": "sign_flip"},
            "only 20 are outside the minority",
        ),
    ],
)
def test_a_mistake_is_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        CellSettings(**settings)  # type: ignore[arg-type]


def test_the_id_depends_on_what_decides_the_result() -> None:
    plain = CellSettings()
    assert plain.cell_id().startswith("fashion-mnist-secureafl-none-")
    assert CellSettings(source="elsewhere").cell_id() == plain.cell_id()
    assert CellSettings(defense_settings={"percentile": 0.5}).cell_id() == plain.cell_id()  # spelt out, but the default
    assert CellSettings(seed=1).cell_id() != plain.cell_id()
    assert CellSettings(defense_settings={"percentile": 0.6}).cell_id() != plain.cell_id()


def test_a_minority_is_part_of_the_id_of_its_own_partition_alone() -> None:
    """The digest is what 0.1.0 named this cell by, when there was no such partition."""
    asyncsgd = CellSettings(defense="asyncsgd")
    assert asyncsgd.cell_id() == "fashion-mnist-asyncsgd-none-f88e64fa78e3"
    assert not set(OF_MINORITY) & asyncsgd.complete().keys()
    few, more = (CellSettings(partition="minority", minority_share=share) for share in (0.1, 0.2))
    assert len({CellSettings().cell_id(), few.cell_id(), more.cell_id()}) == 3
    assert few.minority == {45, 46, 47, 48, 49}
    assert (few.held_class, asyncsgd.held_class, asyncsgd.minority) == (9, None, frozenset())


def test_those_who_hold_a_class_alone_are_honest() -> None:
    for seed in range(5):
        plain = CellSettings(attack="sign_flip", seed=seed)
        cell = CellSettings(attack="sign_flip", seed=seed, partition="minority")
        malicious = draw_malicious(cell)
        assert len(malicious) == 10
        assert not malicious & cell.minority
        assert draw_malicious(plain) - cell.minority <= malicious  # the same ones, and others for those passed over


def test_defenses_are_told_what_the_cell_knows() -> None:
    cell = CellSettings(defense="kardam", malicious_fraction=0.4)
    assert cell.complete()["defense_settings"]["malicious_fraction"] == 0.4
    assert CellSettings(**cell.complete()).cell_id() == cell.cell_id()
    assert (
        CellSettings(defense="sageflow", dataset="cifar100", labels="coarse").complete()["defense_settings"][
            "num_classes"
        ]
        == 20
    )


def test_an_attack_brings_its_authors_values_for_such_images() -> None:
    cell = CellSettings(attack="threedfed", attack_settings={"mask_std": 0.02})
    assert cell.complete()["attack_settings"]["num_rows"] == 8
    assert cell.complete()["attack_settings"]["mask_std"] == 0.02
    assert CellSettings(dataset="cifar10", attack="threedfed").complete()["attack_settings"]["num_rows"] == 5


@pytest.mark.parametrize(
    "name", ["main-fashion-mnist", "malicious-fraction", "estimator", "main-udacity", "tuning", "fairness", "text"]
)
def test_a_cells_command_leads_back_to_it(name: str) -> None:
    for cell in RECIPES[name].cells(seeds=[3])[::7]:
        _, _, _, *words = shlex.split(cell.command())
        given, overrides = {}, []
        for option, value in zip(words[::2], words[1::2], strict=True):
            if option == "--set":
                overrides.append(value)
            else:
                given[option.removeprefix("--")] = int(value) if value.isdigit() else value
        assert CellSettings(**given | read_assignments(overrides)).cell_id() == cell.cell_id()


def test_a_setting_that_is_off_is_no_part_of_a_cells_identity() -> None:
    assert "max_seats" not in CellSettings().complete()["defense_settings"]
    limited = CellSettings(defense_settings={"max_seats": 20})
    assert limited.complete()["defense_settings"]["max_seats"] == 20
    assert limited.cell_id() != CellSettings().cell_id()
    assert "--set defense_settings.max_seats=20" in limited.command()


def test_the_usual_wire_is_no_part_of_a_cells_identity() -> None:
    assert "wire" not in CellSettings().complete()
    small = CellSettings(wire="int8")
    assert small.complete()["wire"] == "int8"
    assert small.cell_id() != CellSettings().cell_id()
    assert "--set wire=int8" in small.command()
    assert CellSettings(**small.complete()).cell_id() == small.cell_id()


def regional(**settings: Any) -> CellSettings:
    cell = {key: settings.pop(key) for key in ("num_clients", "defense", "attack") if key in settings}
    return CellSettings(**{"num_clients": 100, **cell}, protocol="regions", protocol_settings=settings)


def test_regions_are_told_how_many_clients_they_serve() -> None:
    values = regional(num_regions=5, defense="asyncdefender", top_defense="asyncdefender").complete()
    assert values["defense_settings"]["num_first"] == 20
    assert values["protocol_settings"]["top_defense_settings"]["num_first"] == 5


@pytest.mark.parametrize(
    ("malicious_regions", "counts"),
    [(None, [4] * 5), (2, [0, 0, 0, 10, 10]), (3, [0, 0, 6, 7, 7]), (1, [0] * 4 + [20])],
)
def test_malicious_clients_are_spread_or_gathered(malicious_regions: int | None, counts: list[int]) -> None:
    cell = regional(num_regions=5, malicious_regions=malicious_regions, attack="sign_flip")
    places = [client // 20 for client in draw_malicious(cell)]
    assert sorted(places.count(place) for place in range(5)) == counts


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_regions": 7}, "num_clients = 100 is no multiple of num_regions = 7"),
        ({"num_regions": 10, "malicious_regions": 1}, "room for 10 clients, and 20 are malicious"),
        ({"num_regions": 10, "malicious_regions": 11}, "malicious_regions = 11 of 10"),
        ({"top_defense": "aflguard"}, "needs trusted data, which the top has none of"),
        ({"attack": "adaptive"}, "replicates one server"),
        ({"num_region": 10}, "did you mean 'num_regions'"),
    ],
)
def test_regions_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        regional(**changes)
