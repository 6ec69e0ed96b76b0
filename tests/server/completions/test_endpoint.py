"""The endpoint for completions: prompts of every kind, echo, logprobs, whole and streamed."""

from dataclasses import replace

import pytest

from firesteel.engine.sample.logprobs import TokenLogprobs


@pytest.fixture
def server(open_server):
    return open_server("one two<|return|>")


def complete(server, prompt="ab", **fields):
    return server.post("/v1/completions", {"prompt": prompt, **fields})


def test_text_is_continued(server):
    body = complete(server).json()
    [choice] = body["choices"]
    assert (choice["text"], choice["finish_reason"], body["object"]) == ("one two", "stop", "text_completion")
    assert body["usage"]["prompt_tokens"] == 2 and body["usage"]["completion_tokens"] == 8
    assert list(server.engine.requests[0].token_ids) == [97, 98]


def test_sixteen_tokens_are_the_default(server):
    complete(server)
    assert server.engine.requests[0].params.max_tokens == 16


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("ab", [[97, 98]]), (["a", "b"], [[97], [98]]), ([97, 98], [[97, 98]]), ([[97], [98]], [[97], [98]])],
)
def test_prompts_are_texts_or_tokens(server, prompt, prompts):
    body = complete(server, prompt, n=2).json()
    assert [list(request.token_ids) for request in server.engine.requests] == [
        prompt for prompt in prompts for _ in range(2)
    ]
    assert [choice["index"] for choice in body["choices"]] == list(range(2 * len(prompts)))
    assert body["usage"]["prompt_tokens"] == 2


@pytest.mark.parametrize(("prompt", "status"), [("", 400), ([], 400), ([97, "a"], 400), ([1.5], 400), (None, 400)])
def test_invalid_prompt_is_refused(server, prompt, status):
    answer = complete(server, prompt)
    assert answer.status == status and answer.error["param"].startswith("prompt")


def test_chunks_join_to_the_whole_answer(server):
    events = complete(server, stream=True, stream_options={"include_usage": True}, return_token_ids=True).events
    assert "".join(choice["text"] for event in events for choice in event["choices"]) == "one two"
    assert events[-2]["choices"][0]["finish_reason"] == "stop" and events[-1]["usage"]["completion_tokens"] == 8
    assert sum(len(choice["token_ids"]) for event in events for choice in event["choices"]) == 8
    assert events[0]["choices"][0]["prompt_token_ids"] == [97, 98]


def test_echo_puts_the_prompt_first(server):
    assert complete(server, echo=True).json()["choices"][0]["text"] == "abone two"
    events = complete(server, echo=True, stream=True).events
    assert "".join(event["choices"][0]["text"] for event in events) == "abone two"


def test_logprobs_are_columns(server):
    logprobs = complete(server, logprobs=1).json()["choices"][0]["logprobs"]
    assert "".join(logprobs["tokens"]).startswith("one two") and logprobs["text_offset"][:3] == [0, 1, 2]
    assert logprobs["token_logprobs"][0] == -0.5 and logprobs["top_logprobs"][0] == {"a": -1.0}
    assert complete(server).json()["choices"][0]["logprobs"] is None


def test_echoed_prompt_has_logprobs_from_its_second_token_on(server):
    output = server.engine.output

    def with_prompt(request, token_ids, reason, count):
        made = output(request, token_ids, reason, count)
        if count == 1:
            scored = [TokenLogprobs(token_id=98, logprob=-0.25, top=())]
            made = type(made)(
                **{**{name: getattr(made, name) for name in made.__slots__}, "prompt_logprobs": scored}
            )
        return made

    server.engine.output = with_prompt
    logprobs = complete(server, echo=True, logprobs=0).json()["choices"][0]["logprobs"]
    assert logprobs["tokens"][:3] == ["a", "b", "o"] and logprobs["token_logprobs"][:2] == [None, -0.25]
    assert server.engine.requests[0].params.prompt_logprobs == 0


def test_unsupported_fields_are_declined(server):
    assert complete(server, suffix="x").status == 422
    assert complete(server, best_of=3).status == 422
    assert complete(server, best_of=2, n=2).status == 200


def test_more_prompts_than_the_limit_are_refused(open_server):
    server = open_server(max_num_seqs=1, max_waiting=1)
    answer = complete(server, ["a", "b", "c"])
    assert answer.status == 400 and "2 requests" in answer.error["message"]


def test_streamed_echo_has_the_logprobs_of_a_chunked_prompt(server):
    """The logprobs of all chunks but the first were lost."""
    output = server.engine.output

    async def in_pieces(request):
        scored = [TokenLogprobs(token_id=token, logprob=-0.25, top=()) for token in request.token_ids[1:]]
        for part in (scored[:2], scored[2:]):
            yield replace(output(request, [], None, 0), prompt_logprobs=part)
        yield output(request, [97], None, 1)
        yield output(request, [98], "length", 2)

    server.engine.generate = in_pieces
    events = complete(server, "abcde", echo=True, logprobs=0, stream=True).events
    assert "".join(event["choices"][0]["text"] for event in events) == "abcdeab"
    columns = [event["choices"][0]["logprobs"] for event in events]
    assert [token for column in columns for token in column["tokens"]] == list("abcdeab")
    assert [logprob for column in columns for logprob in column["token_logprobs"]] == [
        None,
        *[-0.25] * 4,
        -0.5,
        -0.5,
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_prompt_alone_is_echoed_and_scored(server, stream):
    """A text is scored by asking for 0 tokens."""
    output = server.engine.output

    def with_prompt(request, token_ids, reason, count):
        scored = [TokenLogprobs(token_id=98, logprob=-0.25, top=())]
        return replace(output(request, token_ids, reason, count), prompt_logprobs=scored)

    server.engine.output = with_prompt
    options = {"stream_options": {"include_usage": True}} if stream else {}
    answer = complete(server, max_tokens=0, echo=True, logprobs=0, stream=stream, return_token_ids=True, **options)
    bodies = answer.events if stream else [answer.json()]
    choices = [choice for body in bodies for choice in body["choices"]]
    assert [(choice["text"], choice["finish_reason"], choice["token_ids"]) for choice in choices] == [
        ("ab", "length", [])
    ]
    logprobs, usage = choices[0]["logprobs"], bodies[-1]["usage"]
    assert logprobs["tokens"] == ["a", "b"] and logprobs["token_logprobs"] == [None, -0.25]
    assert (usage["completion_tokens"], usage["prompt_tokens"]) == (0, 2)
    assert server.engine.requests[0].params.max_tokens == 1 and server.engine.num_open == 0


def test_zero_tokens_without_echo_give_an_empty_text(server):
    choice = complete(server, max_tokens=0).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("", "length")
    assert complete(server, max_tokens=-1).status == 400


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"response_format": {"type": "json_object"}}, 'answer: %json {"type": "object"'),
        ({"guided_regex": "a+"}, "answer: /a+/"),
        ({"structured_outputs": {"grammar": 'root ::= "a"'}}, 'start: "a"'),
    ],
)
def test_constraint_of_a_text_reaches_the_engine(server, fields, rule):
    assert complete(server, **fields).status == 200
    [request] = server.engine.requests
    assert rule in request.params.grammar and "start: answer (<|return|> | <|endoftext|>)" in request.params.grammar
    assert server.service.harmony.stop_token_ids <= request.stops


def test_impossible_constraint_of_a_text_is_refused(server):
    answer = complete(server, structured_outputs={"regex": "("})
    assert answer.status == 400 and answer.error["param"] == "structured_outputs.regex"


def test_prompt_is_cut_on_either_side(server):
    complete(server, "abcd", truncate_prompt_tokens=2)
    complete(server, "abcd", truncate_prompt_tokens=2, truncation_side="right")
    assert [list(request.token_ids) for request in server.engine.requests] == [[99, 100], [97, 98]]


@pytest.mark.parametrize(("skips", "text"), [(True, "ab"), (False, "a<|end|>b"), (None, "a<|end|>b")])
def test_special_tokens_are_left_out_on_request(open_server, skips, text):
    server = open_server("a<|end|>b<|return|>")
    assert complete(server, skip_special_tokens=skips).json()["choices"][0]["text"] == text


def test_prompt_logprobs_and_echoed_ones_have_their_own_counts(server, monkeypatch):
    scored = TokenLogprobs(token_id=98, logprob=-2.0, top=((97, -0.5), (99, -1.0)))

    def output(request, token_ids, reason, count, output=server.engine.output):
        given = output(request, token_ids, reason, count)
        return replace(given, prompt_logprobs=[scored] if count == 1 else None)

    monkeypatch.setattr(server.engine, "output", output)
    [choice] = complete(server, echo=True, logprobs=1, prompt_logprobs=2).json()["choices"]
    assert server.engine.requests[0].params.prompt_logprobs == 2
    assert choice["logprobs"]["top_logprobs"][1] == {"a": -0.5}
    assert choice["prompt_logprobs"][0] is None and set(choice["prompt_logprobs"][1]) == {"97", "98", "99"}
    named = complete(server, logprobs=1, return_tokens_as_token_ids=True).json()["choices"][0]["logprobs"]
    assert named["tokens"][0] == "token_id:111" and set(named["top_logprobs"][0]) == {"token_id:97"}
    assert named["text_offset"][:3] == [0, 1, 2]
    assert complete(server, prompt_logprobs=1, stream=True).error["param"] == "prompt_logprobs"
