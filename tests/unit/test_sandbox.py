"""Origins in one spelling, and the sandbox that permits them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ditto_tasks.contracts.errors import InvalidDefinition
from ditto_tasks.contracts.origin import exact_origin, origin_of
from providers.sandbox import PermissionDenied, Sandbox

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://example.com", "https://example.com"),
        ("HTTPS://Example.COM:443/v1/", "https://example.com"),
        ("http://example.com:80?x#y", "http://example.com"),
        ("http://example.com:443", "http://example.com:443"),
        ("http://127.0.0.1:08080/", "http://127.0.0.1:8080"),
        ("http://[::0001]:80/", "http://[::1]"),
    ],
)
def test_an_origin_has_one_spelling(url: str, origin: str) -> None:
    assert origin_of(url) == origin


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com",
        "ftp://example.com",
        f"https://user:{SECRET}@example.com",
        f"https://example.com\\@{SECRET}",
        f"https://{SECRET}:port",
        f"https://{SECRET}:99999",
        f"https://{SECRET}:0",
        f"https://[{SECRET}]",
        "https://[::::]",
        f"https:///{SECRET}",
        f"https://{SECRET} .com",
        f"https://{SECRET}\n",
        "https://ｅxample.com",
    ],
)
def test_what_has_no_origin_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ValueError, match="must") as refusal:
        origin_of(url)
    assert SECRET not in str(refusal.value)


@given(st.text())
def test_any_text_is_an_origin_or_refused(text: str) -> None:
    try:
        origin = exact_origin(text)
    except ValueError:
        return
    assert exact_origin(origin) == origin_of(origin) == origin


def test_nothing_is_permitted_unless_it_is_listed() -> None:
    assert not Sandbox().allows("network", "https://example.com")
    assert not Sandbox(network=["https://example.com"]).allows("tools", "https://example.com")


@pytest.mark.parametrize("name", ["https://example.com", "https://EXAMPLE.com:443", "https://example.com/"])
def test_an_origin_is_permitted_in_any_spelling(name: str) -> None:
    Sandbox(network=["HTTPS://example.com:443/"]).assert_allowed("network", name)


@pytest.mark.parametrize(
    "name",
    [
        "http://example.com",
        "https://example.com:8443",
        "https://a.example.com",
        "https://example.com.evil.org",
        "https://example.com/v1",
        "https://u@example.com",
        "",
    ],
)
def test_another_origin_is_denied(name: str) -> None:
    with pytest.raises(PermissionDenied, match=r"^Permission denied: network:"):
        Sandbox(network=["https://example.com"]).assert_allowed("network", name)


def test_a_star_permits_every_origin() -> None:
    assert Sandbox(network=["*"]).allows("network", "https://example.com")


@pytest.mark.parametrize(
    "network", ["https://a", b"", None, 3, [SECRET], [f"https://h/{SECRET}"], [None], [3]]
)
def test_a_list_that_is_wrong_is_refused_and_not_shown(network: object) -> None:
    with pytest.raises(InvalidDefinition, match="Invalid sandbox network permissions") as refusal:
        Sandbox(network=network)  # type: ignore[arg-type]
    assert SECRET not in str(refusal.value)


def test_a_later_change_of_the_list_changes_nothing() -> None:
    listed = ["https://a"]
    sandbox = Sandbox(network=listed)
    listed.append("https://b")
    assert not sandbox.allows("network", "https://b")
