import numpy as np
import pytest

from secureafl import ClientId, Vector
from secureafl.lab.attacks import Imitate, ImitateSettings
from secureafl.lab.attacks.attack import Watches, length
from secureafl.lab.attacks.imitate import least_alike
from secureafl.lab.attacks.long_run import LongRun
from secureafl.testing.attack_views import view


def rows_with_a_loner(loner: int, dim: int = 131) -> dict[ClientId, Vector]:
    """Seven honest clients, of whom one asks for something else."""
    rng = np.random.default_rng(8)
    common, other = rng.normal(size=(2, dim))
    wanted = [other if client == loner else common for client in range(7)]
    return {ClientId(k): (row + 0.2 * rng.normal(size=dim)).astype(np.float32) for k, row in enumerate(wanted)}


def informed(loner: int = 4, **settings: object) -> tuple[Imitate, dict[ClientId, Vector]]:
    attack, rows = Imitate(ImitateSettings(**settings)), rows_with_a_loner(loner)  # type: ignore[arg-type]
    assert isinstance(attack, Watches)
    for client, row in rows.items():
        attack.watch(client, row)
    return attack, rows


def test_the_least_alike_by_hand() -> None:
    seen = LongRun(decay=0.9)
    for client, row in enumerate([(1, 0, 0), (1, 0.1, 0), (1, -0.1, 0), (0, 1, 0), (-1, 0, 0.1)]):
        seen.take(ClientId(client), np.array(row, np.float32))
    assert least_alike(seen, 2) == [4, 3]
    assert least_alike(LongRun(decay=0.9), 2) == []


def test_a_colluder_is_honest_until_victims_are_chosen() -> None:
    attack, _ = informed()
    seen = view(round=99)
    np.testing.assert_array_equal(attack.update(seen), seen.gradient)
    assert (attack.update(view(round=100)) != seen.gradient).any()  # ten arrivals for each of ten clients


def test_a_loner_is_copied_at_its_own_length_beside_noise() -> None:
    attack, rows = informed(loner=4, noise_share=0.5)
    sent = [attack.update(view(round=100, updates=rows, rng=np.random.default_rng(k))) for k in range(300)]
    victim = rows[ClientId(4)]
    lengths = [length(one) for one in sent]
    assert np.mean(lengths) == pytest.approx(length(victim), rel=0.02)
    cosines = [float(one @ victim) / (size * length(victim)) for one, size in zip(sent, lengths, strict=True)]
    assert np.mean(cosines) == pytest.approx(np.sqrt(0.5), abs=0.02)
    average = np.mean(sent, axis=0)
    assert float(average @ victim) / (length(average) * length(victim)) > 0.99  # noise fades


def test_without_noise_it_is_a_copy_of_the_average() -> None:
    attack, rows = informed(loner=2, noise_share=0.0)
    attack.watch(ClientId(2), 2 * rows[ClientId(2)])
    np.testing.assert_allclose(attack.update(view(round=100, updates=rows)), rows[ClientId(2)], rtol=1e-4, atol=1e-5)


def test_the_choice_is_made_once_and_saved() -> None:
    attack, rows = informed(loner=4, noise_share=0.0)
    first = attack.update(view(round=100, updates=rows))
    for client, row in rows_with_a_loner(loner=1).items():  # now someone else is alone
        attack.watch(client, rows[client] if client == 4 else row)
    restored = Imitate(attack.settings)
    restored.load_state_dict(attack.state_dict())
    for one in (attack, restored):
        np.testing.assert_allclose(one.update(view(round=200, updates=rows)), first, rtol=1e-4, atol=1e-5)


def test_several_victims_are_given_out_in_turn() -> None:
    attack, rows = informed(num_victims=2, noise_share=0.0)
    sent = [attack.update(view(round=100, updates=rows, client=ClientId(client))) for client in (7, 8, 9)]
    assert (sent[0] != sent[1]).any()
    np.testing.assert_array_equal(sent[0], sent[2])
