import numpy as np
import pytest

from secureafl.errors import SettingsError, StateError
from secureafl.lab.streams import generator_state, restore_generator, stream, torch_seed


def test_equal_keys_draw_equally() -> None:
    np.testing.assert_array_equal(stream(7, "select").random(5), stream(7, "select").random(5))


def test_any_other_key_draws_otherwise() -> None:
    keys = [(7, "select"), (8, "select"), (7, "delay"), (7, "select", 0), (7, "select", 1), (7, "select", 1, 1)]
    keys += [(7, "select", 11), (71, "select")]
    first = {stream(seed, purpose, *indices).random() for seed, purpose, *indices in keys}  # type: ignore[arg-type]
    assert len(first) == len(keys)


def test_two_streams_are_uncorrelated() -> None:
    one, two = stream(0, "batch", 0).normal(size=20_000), stream(0, "batch", 1).normal(size=20_000)
    assert abs(np.corrcoef(one, two)[0, 1]) < 4 / np.sqrt(20_000)


def test_a_saved_stream_goes_on_bit_for_bit() -> None:
    rng = stream(3, "attack", 2)
    rng.integers(10, size=3, dtype=np.uint32)  # leaves half a word behind
    saved = generator_state(rng)
    expected = rng.random(4), rng.integers(10, size=3, dtype=np.uint32)
    other = stream(0, "anything")
    restore_generator(other, saved)
    np.testing.assert_array_equal(other.random(4), expected[0])
    np.testing.assert_array_equal(other.integers(10, size=3, dtype=np.uint32), expected[1])


def test_state_of_another_kind_is_refused() -> None:
    with pytest.raises(StateError, match="PCG64"):
        generator_state(np.random.Generator(np.random.MT19937(0)))
    with pytest.raises(StateError, match="uint64"):
        restore_generator(stream(0, "x"), np.zeros(6))


@pytest.mark.parametrize("arguments", [(-1,), (0, -1)])
def test_negative_keys_are_refused(arguments: tuple[int, ...]) -> None:
    seed, *indices = arguments
    with pytest.raises(SettingsError, match="0 or more"):
        stream(seed, "x", *indices)


def test_torch_seed_fits_63_bits() -> None:
    seeds = [torch_seed(seed, "init") for seed in range(100)]
    assert len(set(seeds)) == 100
    assert all(0 <= seed < 2**63 for seed in seeds)
