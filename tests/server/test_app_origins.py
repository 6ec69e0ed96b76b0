"""Scripts of web pages may use the server only if their origin is allowed."""

import urllib.request

import pytest

PAGE = "http://localhost:3000"
PREFLIGHT = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,x-stainless-os",
}


def ask_leave(server, origin=PAGE, path="/v1/chat/completions"):
    request = urllib.request.Request(server.url + path, method="OPTIONS", headers={"Origin": origin, **PREFLIGHT})
    return server._ask(request)


@pytest.mark.parametrize("origins", ["*", '["*"]', f"https://else.example, {PAGE}"])
def test_allowed_origin_may_send_requests_and_read_answers(open_server, origins):
    server = open_server(allowed_origins=origins, api_key="right")
    leave = ask_leave(server)
    assert leave.status == 200 and leave.headers["access-control-allow-origin"] in ("*", PAGE)
    assert "POST" in leave.headers["access-control-allow-methods"]
    assert "x-stainless-os" in leave.headers["access-control-allow-headers"]
    for key, status in (("right", 200), ("wrong", 401)):
        answer = server.post(
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "a"}]},
            origin=PAGE,
            authorization=f"Bearer {key}",
        )
        assert answer.status == status and answer.headers["access-control-allow-origin"] in ("*", PAGE)
        assert "x-request-id" in answer.headers["access-control-expose-headers"]


def test_allowed_origin_may_read_a_stream(open_server):
    server = open_server(allowed_origins=PAGE)
    body = {"messages": [{"role": "user", "content": "a"}], "stream": True}
    answer = server.post("/v1/chat/completions", body, origin=PAGE)
    assert answer.events and answer.headers["access-control-allow-origin"] == PAGE


def test_other_origins_are_not_allowed(open_server, server):
    some = open_server(allowed_origins="https://else.example")
    assert ask_leave(some).status == 400 and "access-control-allow-origin" not in ask_leave(some).headers
    assert "access-control-allow-origin" not in some.get("/v1/models", origin=PAGE).headers
    assert ask_leave(server).status == 405
    assert "access-control-allow-origin" not in server.get("/v1/models", origin=PAGE).headers
