import pytest
from starlette.responses import PlainTextResponse
from tests.view.web.asgi import ask

from secureafl.view.web.guard import Guard, is_loopback

TOKEN = "a-token-of-some-length"
INSIDE = PlainTextResponse("inside")
PAGES = ("/", "/client")
OPEN = Guard(INSIDE, token=None, local_only=True, pages=PAGES)
CLOSED = Guard(INSIDE, token=TOKEN, local_only=False, pages=PAGES)


@pytest.mark.parametrize("path", ["/", "/clients", "/api/charts", "/static/style.css", "/nowhere"])
def test_nothing_at_all_is_shown_without_the_token(path: str) -> None:
    refused = ask(CLOSED, path)
    assert refused.status == 401
    assert b"open the address that `secureafl dashboard` printed" in refused.body
    for wrong in ("", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "\xff\xfe"):
        assert ask(CLOSED, path, authorization=f"Bearer {wrong}").status == 401
        assert ask(CLOSED, path, cookie=f"secureafl-token={wrong}").status == 401
    assert ask(CLOSED, f"{path}?token=wrong").status == 401
    assert ask(CLOSED, path, authorization=f"Basic {TOKEN}").status == 401


def test_the_token_opens_by_header_and_cookie() -> None:
    assert ask(CLOSED, "/api/charts", authorization=f"Bearer {TOKEN}").body == b"inside"
    assert ask(CLOSED, "/api/charts", cookie=f"other=1; secureafl-token={TOKEN}").body == b"inside"


def test_the_token_moves_from_the_address_into_a_cookie() -> None:
    moved = ask(CLOSED, f"/client?token={TOKEN}&name=a%26b")
    assert moved.status == 303
    assert moved.headers["location"] == "/client?name=a%26b"
    assert moved.headers["set-cookie"].startswith(f"secureafl-token={TOKEN}; HttpOnly")
    assert "SameSite=lax" in moved.headers["set-cookie"]


def test_every_answer_tells_browsers_what_they_may_do_with_it() -> None:
    for answer in (ask(OPEN, "/"), ask(CLOSED, "/"), ask(OPEN, "/", method="POST")):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(method: str) -> None:
    assert ask(OPEN, "/", method=method).status == 405


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "", "[::1", "0.0.0.0"])
def test_a_name_of_somebody_elses_does_not_lead_here(host: str) -> None:
    assert ask(OPEN, "/", host=host).status == 421


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:80", "localhost:9", "[::1]:8765", "127.9.9.9"])
def test_names_of_this_machine_do(host: str) -> None:
    assert ask(OPEN, "/", host=host).status == 200


def test_loopback() -> None:
    assert [
        host for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "::", "10.0.0.1", "x") if is_loopback(host)
    ] == [
        "127.0.0.1",
        "::1",
        "localhost",
    ]
