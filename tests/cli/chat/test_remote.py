"""A chat partner at a URL, with fake servers."""

import pytest

from firesteel.cli.chat.partner import AnswerOptions, AnswerPiece
from firesteel.cli.chat.remote import RemotePartner, choose_model, complete_url, read_chunk, read_error
from firesteel.errors import UserError

HELLO = [{"role": "user", "content": "hello"}]


def answer_of(partner, **options):
    return list(partner.answer(HELLO, AnswerOptions(**options)))


def test_reasoning_content_and_the_count_of_tokens_arrive(serve):
    served = serve(
        events=[
            {"choices": [{"delta": {"role": "assistant", "reasoning_content": "Hm."}}]},
            {"choices": [{"delta": {"content": "Hi"}}]},
            {"choices": [{"delta": {"content": "!"}, "finish_reason": "stop"}]},
            {"choices": [], "usage": {"completion_tokens": 9}},
        ]
    )
    pieces = answer_of(RemotePartner(served.url))
    assert pieces == [
        AnswerPiece(reasoning="Hm."),
        AnswerPiece(content="Hi"),
        AnswerPiece(content="!", finish_reason="stop"),
        AnswerPiece(num_tokens=9),
    ]


def test_options_that_are_not_set_are_not_sent(serve):
    served = serve(events=[])
    answer_of(RemotePartner(served.url))
    assert set(served.bodies[-1]) == {"model", "messages", "stream", "stream_options"}
    answer_of(RemotePartner(served.url), effort="high", max_tokens=5, temperature=0.0)
    body = served.bodies[-1]
    assert (body["reasoning_effort"], body["max_completion_tokens"], body["temperature"]) == ("high", 5, 0.0)
    assert body["messages"] == HELLO and body["model"] == "flint"


def test_key_is_sent(serve):
    served = serve(key="right", events=[])
    answer_of(RemotePartner(served.url, api_key="right"))
    with pytest.raises(UserError, match="another --api-key"):
        RemotePartner(served.url, api_key="wrong")
    with pytest.raises(UserError, match="give --api-key or FIRESTEEL_API_KEY"):
        RemotePartner(served.url)


def test_key_outside_ascii_is_refused():
    with pytest.raises(UserError, match="outside ASCII"):
        RemotePartner("http://127.0.0.1:9", api_key="ключ")


def test_error_without_a_server_has_the_cure(free_port):
    with pytest.raises(UserError, match=r"no server answers at .*firesteel serve"):
        RemotePartner(f"http://127.0.0.1:{free_port}")


def test_error_for_a_wrong_model_lists_the_served_ones(serve):
    with pytest.raises(UserError, match="does not serve tinder; it serves flint"):
        RemotePartner(serve(events=[]).url, model="tinder")


def test_server_that_is_not_openai_compatible_is_an_error(serve):
    with pytest.raises(UserError, match="is it an OpenAI-compatible URL"):
        RemotePartner(serve(models={"hello": 1}).url)


def test_incomplete_answer_is_an_error(serve):
    partner = RemotePartner(serve(events=[{"choices": [{"delta": {"content": "Hi"}}]}], is_done=False).url)
    pieces = partner.answer(HELLO, AnswerOptions())
    assert next(pieces) == AnswerPiece(content="Hi")
    with pytest.raises(UserError, match="before it was complete"):
        next(pieces)


def test_error_message_of_the_server_is_shown(serve):
    refusal = {"error": {"message": "the prompt has 9 tokens too many", "type": "invalid_request_error"}}
    with pytest.raises(UserError, match="answered 400: the prompt has 9 tokens too many"):
        answer_of(RemotePartner(serve(refusal=refusal).url))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("http://h:8000", "http://h:8000/v1"),
        ("h:8000", "http://h:8000/v1"),
        ("https://h/v1/", "https://h/v1"),
        ("https://h/openai/v1", "https://h/openai/v1"),
    ],
)
def test_bare_host_gets_a_scheme_and_a_path(given, expected):
    assert complete_url(given) == expected


@pytest.mark.parametrize("given", ["ftp://h", "http://", "http://h:port"])
def test_invalid_address_is_refused(given):
    with pytest.raises(UserError, match="--url"):
        complete_url(given)


def test_model_is_required_if_the_server_has_several_or_lists_none():
    with pytest.raises(UserError, match="serves a, b: choose one"):
        choose_model(["a", "b"], "", "URL")
    with pytest.raises(UserError, match="does not list its models"):
        choose_model(None, "", "URL")
    assert choose_model(None, "a", "URL") == choose_model(["a"], "", "URL") == "a"


@pytest.mark.parametrize("data", ["{", "[]", '{"choices": [1]}', '{"choices": {"a": 1}}'])
def test_invalid_chunk_is_an_error(data):
    with pytest.raises(UserError, match="something else than a chat completion chunk"):
        read_chunk(data)


def test_error_within_the_stream_is_shown():
    with pytest.raises(UserError, match="reported an error: the engine died"):
        read_chunk('{"error": {"message": "the engine died"}}')


def test_errors_of_any_format_are_read():
    assert read_error(b'{"error": {"message": "a"}}') == read_error(b'{"error": "a"}') == read_error(b"a") == "a"
    assert read_error(b'{"message": "a"}') == "a" and read_error(b"") == ""
