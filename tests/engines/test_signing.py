from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from secureafl.engines.signing import KeysFile, Part, digest, read_keys, read_private_key, sign, verify, write_key_pair
from secureafl.errors import SettingsError

PARTS: list[Part] = [("w", "float32", (2, 1), b"12345678"), ("b", "float32", (1,), b"abcd")]


def test_digest_ignores_order_and_sees_every_change() -> None:
    assert digest(PARTS) == digest(PARTS[::-1])
    changed: list[list[Part]] = [
        [("v", "float32", (2, 1), b"12345678"), PARTS[1]],
        [("w", "float64", (2, 1), b"12345678"), PARTS[1]],
        [("w", "float32", (1, 2), b"12345678"), PARTS[1]],
        [("w", "float32", (2, 1), b"12345679"), PARTS[1]],
        PARTS[:1],
        [],
    ]
    assert len({digest(PARTS), *map(digest, changed)}) == 1 + len(changed)


def test_a_signature_holds_for_one_key_nonce_version_and_update(tmp_path: Path) -> None:
    (tmp_path / "keys.toml").write_text(
        f'a = "{write_key_pair(tmp_path / "a.pem")}"\nb = "{write_key_pair(tmp_path / "b.pem")}"\n'
    )
    keys = read_keys(tmp_path / "keys.toml")
    signature = sign(read_private_key(tmp_path / "a.pem"), b"nonce", 7, b"update")
    assert verify(keys["a"], signature, b"nonce", 7, b"update")
    assert not verify(keys["b"], signature, b"nonce", 7, b"update")
    assert not verify(keys["a"], signature, b"other", 7, b"update")
    assert not verify(keys["a"], signature, b"nonce", 8, b"update")
    assert not verify(keys["a"], signature, b"nonce", 7, b"changed")
    assert not verify(keys["a"], b"short", b"nonce", 7, b"update")


def test_a_client_that_signs_with_0_1_is_understood() -> None:
    """The signature was made by 0.1.0."""
    key = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    made = bytes.fromhex(
        "4d510cd7dab9d2f4f4b67d08f5d78b84a95e9c1074defd472ef2be819d3c27c1"
        "075d4ee733b1a0b4a3a95414ff309c45a38c5f890a62c1b6859f6ef47f3de207"
    )
    assert verify(key.public_key(), made, b"nonce", 7, digest(PARTS))


def test_private_keys_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    write_key_pair(tmp_path / "key.pem")
    assert (tmp_path / "key.pem").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", ["someone's key", ""])
def test_a_file_that_exists_is_never_overwritten(content: str, tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    path.write_text(content)
    with pytest.raises(SettingsError, match=r"key\.pem exists.* name another file, or move this one away") as raised:
        write_key_pair(path)
    assert "\n" not in str(raised.value)
    assert path.read_text() == content
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "key.pem").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SettingsError, match="never overwritten"):
        write_key_pair(tmp_path / "key.pem")
    assert not (tmp_path / "elsewhere").exists()


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        SettingsError, match=r"cannot write a signing key to .*none/key\.pem: No such file or directory"
    ):
        write_key_pair(tmp_path / "none" / "key.pem")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('a = "!"', "key of client 'a' is not a base64"),
        ("a = 5", "key of client 'a'"),
        ("not toml", "cannot read public keys"),
    ],
)
def test_bad_key_files_say_what_is_wrong(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "keys.toml").write_text(content)
    with pytest.raises(SettingsError, match=message):
        read_keys(tmp_path / "keys.toml")


def test_missing_and_foreign_private_keys_are_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot read a signing key"):
        read_private_key(tmp_path / "none.pem")


def test_keys_that_change_while_the_server_runs_are_in_force_at_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = (write_key_pair(tmp_path / f"{name}.pem") for name in "ab")
    path = tmp_path / "keys.toml"
    path.write_text(f'a = "{a}"\n')
    keys = KeysFile(path)
    assert keys.get("a") is not None
    assert keys.get("b") is None
    path.write_text(f'b = "{b}"\n')
    assert keys.get("a") is None, "revoked"
    assert keys.get("b") is not None
    path.write_text("b = ")
    assert keys.get("b") is not None
    path.unlink()
    assert keys.get("b") is not None
    assert [record.message.endswith("the keys read before stay in force") for record in caplog.records] == [True, True]
    path.write_text("")
    assert keys.get("b") is None
