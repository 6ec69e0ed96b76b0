"""Secrets in commands, addresses, headers and variables, and text that only resembles them."""

import pytest

from firesteel.config import find_in_text, hide_in_text, hide_secrets, shown_environment, told_environment

HIDDEN_TEXTS = [
    ("http://u:pw@h:8000/v1", "http://(hidden)@h:8000/v1"),
    ("http://u:p@w@h/v1", "http://(hidden)@h/v1"),
    ("https://ghp_abc@host", "https://(hidden)@host"),
    ("socks5h://u:pw@[::1]:9/x", "socks5h://(hidden)@[::1]:9/x"),
    ("u:pw@h:8000", "(hidden)@h:8000"),
    ("http://h/v1?api_key=sk-1&model=x", "http://h/v1?api_key=(hidden)&model=x"),
    ("http://h/?a=1&access_token=t#top", "http://h/?a=1&access_token=(hidden)#top"),
    ("http://h/?key=k", "http://h/?key=(hidden)"),
    ("http://h/?X-Amz-Signature=s&x=1", "http://h/?X-Amz-Signature=(hidden)&x=1"),
    ("Authorization: Bearer sk-1", "Authorization: (hidden)"),
    ("authorization:Basic dXNlcjpwdw==", "authorization:(hidden)"),
    ("Proxy-Authorization: Basic x", "Proxy-Authorization: (hidden)"),
    ("X-Api-Key: k", "X-Api-Key: (hidden)"),
    ("Cookie: a=b; c=d", "Cookie: (hidden)"),
    ('{"api_key": "k", "port": 1}', '{"api_key": "(hidden)", "port": 1}'),
    ("sent Bearer sk-12345678 to it", "sent Bearer (hidden) to it"),
]
PLAIN_TEXTS = [
    "http://h:8000/v1?model=x&max_tokens=5",
    "no server answers at http://127.0.0.1:8000/v1 (ConnectError): start one",
    "image:3.12@sha256:0123",
    "user@host",
    "unknown key: foo",
    "12:30:01 error: x@y",
    "content-type: application/json",
    "this server needs `Authorization` to be set",
    "bearer token",
    "openai/gpt-oss-20b",
    "https://h/@scope/package",
]


@pytest.mark.parametrize(("text", "shown"), HIDDEN_TEXTS)
def test_secrets_in_texts_are_hidden(text, shown):
    assert hide_in_text(text) == shown
    assert hide_in_text(f"before {text}") == f"before {shown}"
    assert hide_in_text(shown) == shown  # hiding twice changes nothing


@pytest.mark.parametrize("text", PLAIN_TEXTS)
def test_other_text_stays(text):
    assert hide_in_text(text) == text and not list(find_in_text(text))


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["curl", "-H", "Authorization: Bearer sk-1"], ["curl", "-H", "Authorization: (hidden)"]),
        (["curl", "-HAuthorization: Bearer sk-1", "x"], ["curl", "-HAuthorization: (hidden)", "x"]),
        (["--header=X-Api-Key: sk-1"], ["--header=X-Api-Key: (hidden)"]),
        (["--url", "http://u:pw@h"], ["--url", "http://(hidden)@h"]),
        (["--url=http://u:pw@h?api_key=k"], ["--url=http://(hidden)@h?api_key=(hidden)"]),
        (
            ["env", "https_proxy=http://u:pw@proxy:3128", "vllm"],
            ["env", "https_proxy=http://(hidden)@proxy:3128", "vllm"],
        ),
        (['"', "'--api-key'"], ['"', "'--api-key'"]),
        (["--proxy", "u:pw@proxy:3128"], ["--proxy", "(hidden)@proxy:3128"]),
        (
            ["sh", "-c", "curl -H 'Authorization: Bearer sk-1' http://u:pw@h --api-key k"],
            ["sh", "-c", "curl -H 'Authorization: (hidden)' http://(hidden)@h --api-key (hidden)"],
        ),
    ],
    ids=lambda words: " ".join(words),
)
def test_secrets_in_commands_are_hidden(words, shown):
    assert hide_secrets(words) == shown and hide_secrets(shown) == shown


def test_secrets_in_values_of_variables_are_hidden():
    environ = {"VLLM_PROXY": "http://u:pw@h", "FIRESTEEL_MODEL": "x", "LLAMA_ARG_URL": "http://h?token=t"}
    shown = {"FIRESTEEL_MODEL": "x", "LLAMA_ARG_URL": "http://h?token=(hidden)", "VLLM_PROXY": "http://(hidden)@h"}
    assert shown_environment(environ) == shown and told_environment(environ) == shown


def test_secrets_are_found_with_and_without_what_stands_before_them():
    assert set(find_in_text("http://user:password@h")) == {"user:password", "password"}
    assert set(find_in_text("Authorization: Bearer sk-1")) == {"Bearer sk-1", "sk-1"}
    assert set(find_in_text("http://h/?api_key=k")) == set()  # too short to be replaced wherever it occurs


@pytest.mark.parametrize("text", ["a:" * 50_000, "x" * 100_000 + "@", "?" * 100_000, "a-" * 50_000, "://" * 30_000])
def test_long_texts_are_searched_in_linear_time(text):
    hide_in_text(text)  # with a quadratic search the time limit of the test run ends this
