"""What NVFlare carries, honest and hostile."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load

from secureafl.engines import signing
from secureafl.engines.nvflare import NVFlareSettings
from secureafl.engines.nvflare.codec import Messages, data_digest, pack
from secureafl.layout import Layout
from secureafl.server import Assignment
from secureafl.types import Reason
from secureafl.wire import CompressedUpdate, Wire, compress

LAYOUT = Layout.of({"w": np.zeros(2, np.float32), "b": np.zeros((1, 1), np.float32)})
BASE = LAYOUT.flatten({"w": np.array([1, 2], np.float32), "b": np.array([[3]], np.float32)})
TASK = Assignment(0, "site-1", 7, BASE, b"n" * 16)


def test_a_dispatch_holds_the_model_its_version_and_a_nonce() -> None:
    sent = Messages(LAYOUT, NVFlareSettings(), {"lr": 0.1}).encode(TASK)
    arrays = load(sent["arrays"])
    np.testing.assert_array_equal(arrays["w"], [1, 2])
    np.testing.assert_array_equal(arrays["b"], [[3]])
    assert (sent["version"], sent["nonce"], sent["config"]) == (7, b"n" * 16, {"lr": 0.1})


def test_weights_become_an_update_that_points_uphill() -> None:
    answer = {"arrays": pack({"w": np.array([0.5, 2]), "b": np.array([[4.0]])})}
    update = Messages(LAYOUT, NVFlareSettings()).decode(answer, TASK)
    assert isinstance(update, np.ndarray)
    np.testing.assert_array_equal(update, BASE - LAYOUT.flatten({"w": np.array([0.5, 2]), "b": np.array([[4.0]])}))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, Reason.MALFORMED),
        ([], Reason.MALFORMED),
        ({}, Reason.MALFORMED),
        ({"arrays": "text"}, Reason.MALFORMED),
        ({"arrays": b""}, Reason.MALFORMED),
        ({"arrays": b"\xff" * 100}, Reason.MALFORMED),
        ({"arrays": bytes(10_000)}, Reason.TOO_LARGE),
        ({"arrays": pack({"w": np.zeros(2, np.float32)})}, Reason.WRONG_NAMES),
        ({"arrays": pack({"w": np.zeros(3, np.float32), "b": np.zeros((1, 1))})}, Reason.WRONG_SHAPE),
        ({"arrays": pack({"w": np.zeros(2, np.bool_), "b": np.zeros((1, 1))})}, Reason.WRONG_DTYPE),
    ],
)
def test_a_bad_answer_is_a_reason(answer: object, reason: Reason) -> None:
    assert Messages(LAYOUT, NVFlareSettings()).decode(answer, TASK) is reason


def test_with_keys_only_a_signature_for_this_assignment_counts(tmp_path: Path) -> None:
    public = signing.write_key_pair(tmp_path / "key.pem")
    (tmp_path / "keys.toml").write_text(f'site-1 = "{public}"\n')
    messages = Messages(LAYOUT, NVFlareSettings(keys_file=tmp_path / "keys.toml"))
    data = pack(LAYOUT.unflatten(BASE))
    key = signing.read_private_key(tmp_path / "key.pem")
    good = signing.sign(key, TASK.nonce, TASK.version, data_digest(data))
    stale = signing.sign(key, TASK.nonce, TASK.version - 1, data_digest(data))
    assert isinstance(messages.decode({"arrays": data, "signature": good}, TASK), np.ndarray)
    for wrong in (None, "text", stale, good[::-1]):
        assert messages.decode({"arrays": data, "signature": wrong}, TASK) is Reason.BAD_SIGNATURE


COMPRESSED = compress(np.array([127.0, -1.0, 3.0], np.float32), "int8")


def test_a_compressed_update_is_read_and_its_signature_covers_what_was_sent(tmp_path: Path) -> None:
    public = signing.write_key_pair(tmp_path / "key.pem")
    (tmp_path / "keys.toml").write_text(f'site-1 = "{public}"\n')
    messages = Messages(LAYOUT, NVFlareSettings(keys_file=tmp_path / "keys.toml", wire="int8"))
    key = signing.read_private_key(tmp_path / "key.pem")
    good = signing.sign(key, TASK.nonce, TASK.version, data_digest(COMPRESSED, "compressed"))
    update = messages.decode({"compressed": COMPRESSED, "signature": good}, TASK)
    assert isinstance(update, CompressedUpdate)
    assert (update.delta.tolist(), update.compressed) == ([127.0, -1.0, 3.0], COMPRESSED)
    other = COMPRESSED[:20] + b"\x00" + COMPRESSED[21:]
    for wrong in ({"compressed": other, "signature": good}, {"arrays": COMPRESSED, "signature": good}):
        assert messages.decode(wrong, TASK) is Reason.BAD_SIGNATURE


@pytest.mark.parametrize(
    ("answer", "wire", "reason"),
    [
        ({"compressed": b""}, "int8", Reason.MALFORMED),
        ({"compressed": "text"}, "int8", Reason.MALFORMED),
        ({"compressed": COMPRESSED[:-4]}, "int8", Reason.MALFORMED),
        ({"compressed": COMPRESSED, "arrays": b""}, "int8", Reason.MALFORMED),
        ({"compressed": compress(np.ones(4, np.float32), "int8")}, "int8", Reason.WRONG_SHAPE),
        ({"compressed": bytes(10_000)}, "int8", Reason.TOO_LARGE),
        ({"compressed": COMPRESSED}, "float32", Reason.WRONG_NAMES),
    ],
)
def test_a_bad_compressed_answer_is_a_reason(answer: object, wire: Wire, reason: Reason) -> None:
    assert Messages(LAYOUT, NVFlareSettings(wire=wire)).decode(answer, TASK) is reason
