"""Stored responses, within a limit of memory."""

import msgspec
import pytest

from firesteel.server.http.errors import ApiError
from firesteel.server.responses.answers import Event, MessageItem, OutputTextPart, Response
from firesteel.server.responses.event_log import EventLog
from firesteel.server.responses.schema import Item, Reasoning, TextOptions
from firesteel.server.responses.store import ResponseStore, Stored, complete_items, list_items


def stored(name, text="answer", history=(), owner="1"):
    said = MessageItem(id=f"msg_{name}", status="completed", content=[OutputTextPart(text=text)])
    response = Response(
        id=name,
        created_at=0,
        model="m",
        status="completed",
        tools=[],
        tool_choice="auto",
        text=TextOptions(),
        reasoning=Reasoning(),
        parallel_tool_calls=True,
        store=True,
        temperature=1.0,
        top_p=1.0,
        top_logprobs=0,
        truncation="disabled",
        output=[said],
    )
    return Stored(response, list(history), complete_items([Item(role="user", content="question")]), owner)


def test_the_conversation_is_history_question_and_answer():
    first = stored("a")
    second = stored("b", history=first.conversation())
    roles = [(item.role, item.content[0].text) for item in second.conversation()]
    assert roles == [("user", "question"), ("assistant", "answer")] * 2


def test_oldest_is_dropped_first_and_the_limit_holds():
    size = stored("a").count_bytes()
    store = ResponseStore(3 * size)
    for name in "abcd":
        store.put(stored(name))
    assert len(store) == 3 and store.num_bytes <= store.most_bytes
    with pytest.raises(ApiError, match="response 'a' not found"):
        store.get("a", "1")
    assert store.get("d", "1").response.id == "d"


def test_items_are_converted_once():
    """Each of thousands of references converted all items of the response."""
    store = ResponseStore(1 << 20)
    store.put(stored("a"))
    assert store.find_item("msg_a", "1", "x") is store.find_item("msg_a", "1", "y")


def test_an_item_is_found_as_long_as_a_response_holds_it():
    store = ResponseStore(1 << 20)
    first = stored("a")
    store.put(first)
    store.put(Stored(stored("b").response, [], first.items(), "1"))
    question = first.given[0].id
    assert store.find_item("msg_a", "1", "x").content[0].text == "answer"
    store.delete("a", "1")
    assert store.find_item("msg_a", "1", "x").id == "msg_a" and store.find_item(question, "1", "x").role == "user"
    store.delete("b", "1")
    for name in ("msg_a", "msg_b", question):
        with pytest.raises(ApiError, match="not found") as raised:
            store.find_item(name, "1", "input[2].id")
        assert raised.value.status == 404 and raised.value.param == "input[2].id"


def test_items_of_a_response_that_grew_are_found_and_forgotten():
    store = ResponseStore(1 << 20)
    entry = stored("a")
    output, entry.response.output = entry.response.output, []
    store.put(entry)
    entry.response.output = output
    with pytest.raises(ApiError):
        store.find_item("msg_a", "1", "x")
    store.put(entry)
    assert store.find_item("msg_a", "1", "x").id == "msg_a"
    with pytest.raises(ApiError):
        store.find_item("msg_a", "2", "x")


def test_events_of_a_background_response_count():
    entry = stored("a")
    before = entry.count_bytes()
    entry.log = EventLog()
    entry.log.add([Event(type="x" * 1000, sequence_number=0)])
    assert entry.count_bytes() > before + 2000  # the type is also the name of the event


def test_history_counts_in_every_entry_that_keeps_it_alive():
    history = [Item(role="user", content="x" * 10_000)]
    assert stored("a", history=history).count_bytes() > 10_000 + stored("a").count_bytes()


def test_too_large_response_is_not_kept_and_drops_no_other():
    store = ResponseStore(2 * stored("a").count_bytes())
    store.put(stored("a"))
    store.put(stored("b", text="x" * 10_000))
    assert len(store) == 1 and store.get("a", "1")


def test_limit_of_0_keeps_nothing():
    store = ResponseStore(0)
    store.put(stored("a"))
    assert len(store) == 0


def test_second_put_replaces_the_first():
    store = ResponseStore(1 << 20)
    store.put(stored("a", text="x" * 1000))
    store.put(stored("a"))
    assert len(store) == 1 and store.num_bytes == stored("a").count_bytes()
    store.delete("a", "1")
    assert store.num_bytes == 0
    with pytest.raises(ApiError) as raised:
        store.delete("a", "1")
    assert raised.value.status == 404


def test_owners_do_not_find_each_others_responses():
    store = ResponseStore(1 << 20)
    store.put(stored("a", owner="1"))
    for ask in (store.get, store.find_previous, store.delete):
        with pytest.raises(ApiError, match="response 'a' not found"):
            ask("a", "2")
    assert store.get("a", "1") is store.find_previous("a", "1")


def test_missing_previous_response_is_a_request_error():
    with pytest.raises(ApiError) as raised:
        ResponseStore(1).find_previous("resp_x", "1")
    assert raised.value.status == 400 and raised.value.code == "previous_response_not_found"


def test_items_are_listed_in_pages():
    items = complete_items([Item(role="user", content=str(number), id=f"i{number}") for number in range(5)])
    page = list_items(items, {"limit": "2"})
    assert [item["id"] for item in page.data] == ["i4", "i3"] and page.has_more
    page = list_items(items, {"order": "asc", "after": "i2"})
    assert (page.first_id, page.last_id, page.has_more) == ("i3", "i4", False)
    for query in ({"limit": "0"}, {"limit": "x"}, {"limit": "1" * 5000}, {"after": "i9"}):
        with pytest.raises(ApiError):
            list_items(items, query)


def test_listed_items_have_only_the_fields_of_their_kind():
    [shown] = list_items(complete_items([Item(role="user", content="a", id="i")]), {}).data
    assert shown == {"type": "message", "id": "i", "role": "user", "content": [{"type": "input_text", "text": "a"}]}
    assert msgspec.convert(shown, Item).content[0].text == "a"
