import socket

import pytest

from secureafl.errors import SettingsError
from secureafl.view.web.serve import address, bind, choose_token


def test_a_token_is_made_when_others_can_reach_the_server() -> None:
    assert choose_token("127.0.0.1", None) is None
    assert choose_token("127.0.0.1", "given-token") == "given-token"
    made = [choose_token("0.0.0.0", None) for _ in range(2)]
    assert made[0] != made[1]
    assert len(made[0] or "") >= 32
    assert choose_token("0.0.0.0", made[0]) == made[0]


@pytest.mark.parametrize("token", ["", "short", "with spaces in it", "quote\"'<>&;"])
def test_a_token_that_would_not_survive_a_url_or_a_guess_is_refused(token: str) -> None:
    with pytest.raises(SettingsError, match="a token has at least 8 letters"):
        choose_token("127.0.0.1", token)


def test_a_busy_port_is_met_with_what_to_do() -> None:
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(SettingsError, match=rf"port {port} of 127\.0\.0\.1 is in use: give another with --port"):
            bind("127.0.0.1", port)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "203.0.113.7"])
def test_an_address_that_is_not_this_machines_is_named(host: str) -> None:
    with pytest.raises(SettingsError, match="this machine"):
        bind(host, 0)


def test_the_address_to_open() -> None:
    assert address("127.0.0.1", 80, None) == "http://127.0.0.1:80/"
    assert address("::1", 80, "abc") == "http://[::1]:80/?token=abc"
    assert address("0.0.0.0", 80, "abc") == f"http://{socket.gethostname()}:80/?token=abc"
