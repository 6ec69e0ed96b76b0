"""API keys: who may ask, and that clients with different keys share neither responses nor cached prefixes."""

import itertools

import pytest

from firesteel import UserError
from firesteel.config import resolve
from firesteel.server.http.errors import ApiError
from firesteel.server.http.keys import KeyCheck
from firesteel.server.service import Service

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"


@pytest.mark.parametrize(
    "given", [None, "", "Bearer", "Bearer wrong", "Basic right", "right", "Bearer right2", "Bearer righ"]
)
def test_wrong_key_is_refused(given):
    for keys in (["right"], ["left", "right"]):
        with pytest.raises(ApiError) as caught:
            KeyCheck(keys).check(given)
        assert caught.value.status == 401 and "right" not in str(caught.value)


def test_right_key_or_no_key_required_is_accepted():
    KeyCheck(["right"]).check("Bearer right")
    KeyCheck(["right"]).check("bearer  right ")
    assert KeyCheck([]).check(None) == ""


def test_key_may_come_in_the_header_x_api_key():
    keys = KeyCheck(["left", "right"])
    assert keys.check(None, "right") == keys.check("Bearer wrong", " right ") == "2"
    for given in (None, "", "Bearer right", "wrong"):
        with pytest.raises(ApiError):
            keys.check("Bearer wrong", given)


def test_each_key_is_an_owner_whose_name_reveals_nothing():
    keys = KeyCheck(["left", "right"])
    owners = [keys.check(f"Bearer {key}") for key in ("left", "right", "left")]
    assert owners == ["1", "2", "1"]


def test_key_protects_all_but_health_metrics_and_the_page(open_server):
    server = open_server(api_key="right")
    for path in ("/health", "/health/live", "/metrics", "/", "/openapi.json"):
        assert server.get(path).status == 200, path
    for path in ("/v1/models", "/ledger"):
        answer = server.get(path)
        assert answer.status == 401 and answer.headers["www-authenticate"] == "Bearer"
        assert server.get(path, authorization="Bearer right").status == 200
    assert server.chat().status == 401
    assert server.post("/tokenize", {"prompt": "a"}).status == 401
    assert server.post("/tokenize", {"prompt": "a"}, authorization="Bearer right").status == 200


def test_keys_come_from_flags_and_from_a_file(open_server, tmp_path):
    file = tmp_path / "keys"
    file.write_text("third\n\n  fourth \nfirst\n")
    server = open_server(api_key="first\nsecond", api_key_file=str(file))
    for key in ("first", "second", "third", "fourth"):
        assert server.get("/v1/models", authorization=f"Bearer {key}").status == 200, key
    for key in ("first\tsecond", "fifth", ""):
        assert server.get("/v1/models", authorization=f"Bearer {key}").status == 401, key


@pytest.mark.parametrize(("content", "why"), [(None, "No such file"), (b"\n \n", "no key in it"), (b"\xff", "UTF")])
def test_file_without_keys_opens_no_server(checkpoint, new_engine, tmp_path, content, why):
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)
    config = resolve({"model": "tiny", "api_key_file": str(file)}).config
    with pytest.raises(UserError, match=f"--api-key-file .*keys: .*{why}"):
        Service(new_engine(), checkpoint, config)


def ask(server, path, key, **fields):
    question = {"input": "hi"} if path == RESPONSES else {"messages": [{"role": "user", "content": "hi"}]}
    question = {"prompt": "hi"} if path == "/v1/completions" else question
    answer = server.post(path, {**question, **fields}, authorization=f"Bearer {key}")
    assert answer.status == 200, answer.body
    return answer.json()


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", RESPONSES])
def test_keys_and_salts_keep_cached_prefixes_apart(open_server, path):
    server = open_server(api_key="a\nb")
    for key, salt in itertools.product("ab", (None, "x", "2:x")):
        ask(server, path, key, cache_salt=salt)
    salts = [request.cache_salt for request in server.engine.requests]
    assert len(set(salts)) == len(salts) == 6
    ask(server, path, "b", cache_salt="x")
    assert server.engine.requests[-1].cache_salt == salts[4]


def test_prefixes_are_shared_if_the_operator_says_so(open_server):
    server = open_server(api_key="a\nb", share_prefixes=True)
    for key, salt in itertools.product("ab", (None, "x")):
        ask(server, CHAT, key, cache_salt=salt)
    salts = [request.cache_salt for request in server.engine.requests]
    assert salts[:2] == salts[2:] and salts[0] == "" != salts[1]


def test_without_keys_prefixes_are_shared(server):
    assert server.chat().status == 200
    assert server.engine.requests[-1].cache_salt == ""


@pytest.mark.parametrize("salt", ["", 5, "x" * 1025])
def test_bad_salt_is_refused(server, salt):
    answer = server.chat(cache_salt=salt)
    assert answer.status == 400 and answer.error["param"] == "cache_salt"


@pytest.mark.parametrize("is_shared", [False, True])
def test_stored_responses_belong_to_their_key(open_server, is_shared):
    server = open_server(api_key="a\nb", share_prefixes=is_shared)
    name = ask(server, RESPONSES, "a")["id"]
    for path in (f"{RESPONSES}/{name}", f"{RESPONSES}/{name}/input_items"):
        assert server.get(path, authorization="Bearer b").status == 404
        assert server.get(path, authorization="Bearer a").status == 200
    body = {"input": "more", "previous_response_id": name}
    assert server.post(RESPONSES, body, authorization="Bearer b").error["code"] == "previous_response_not_found"
    assert server.delete(f"{RESPONSES}/{name}", authorization="Bearer b").status == 404
    assert server.post(RESPONSES, body, authorization="Bearer a").status == 200
    assert server.delete(f"{RESPONSES}/{name}", authorization="Bearer a").status == 200


def test_background_response_is_cancelled_by_its_key_only(open_server):
    server = open_server(api_key="a\nb")
    server.engine.pause_s = 0.2
    name = ask(server, RESPONSES, "a", background=True)["id"]
    assert server.post(f"{RESPONSES}/{name}/cancel", {}, authorization="Bearer b").status == 404
    assert server.delete(f"{RESPONSES}/{name}", authorization="Bearer b").status == 404
    assert server.get(f"{RESPONSES}/{name}", authorization="Bearer a").json()["status"] == "in_progress"
    cancelled = server.post(f"{RESPONSES}/{name}/cancel", {}, authorization="Bearer a").json()
    assert cancelled["status"] == "cancelled"
