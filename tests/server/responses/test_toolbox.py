"""Tools of a response: namespaces are flattened, hosted tools left out, custom tools take text."""

import msgspec
import pytest

from firesteel.chat.tools import TextRule
from firesteel.server.http.errors import ApiError
from firesteel.server.openai import requests as chat
from firesteel.server.responses.schema import ResponseRequest
from firesteel.server.responses.toolbox import flatten, open_toolbox

LOOK = {"type": "function", "name": "look", "parameters": {"type": "object"}}
AGENTS = {
    "type": "namespace",
    "name": "agents",
    "description": "Runs agents.",
    "tools": [{"type": "function", "name": "close", "description": "Closes."}, {"type": "custom", "name": "say"}],
}
PATCH = {
    "type": "custom",
    "name": "patch",
    "format": {"type": "grammar", "syntax": "regex", "definition": "[+-].*"},
}
SEARCH = {"type": "web_search", "external_web_access": False}


def collect(tools, **fields):
    asked = msgspec.convert(
        {"input": [{"role": "user", "content": "a"}], "tools": tools, **fields}, ResponseRequest
    )
    return open_toolbox(asked, asked.input)


def test_tools_in_namespaces_are_counted_before_they_are_read(monkeypatch):
    monkeypatch.setattr("firesteel.server.responses.toolbox.read_entry", pytest.fail)
    many = {"type": "namespace", "name": "many", "tools": [{"name": f"t{number}"} for number in range(1024)]}
    with pytest.raises(ApiError, match="1025 tools, those in namespaces included; at most 1024"):
        collect([LOOK, many])


def test_namespaces_are_flattened_and_found_again():
    toolbox = collect([LOOK, AGENTS])
    assert [tool.spec.function.name for tool in toolbox.offered] == ["look", "agents__close", "agents__say"]
    assert [tool.spec.function.description for tool in toolbox.offered] == [
        None,
        "Namespace agents: Runs agents.\nCloses.",
        None,
    ]
    for called in ("agents__close", "agents.close"):
        tool = toolbox.find(called)
        assert (tool.namespace, tool.name, tool.is_custom, tool.place) == (
            "agents",
            "close",
            False,
            "tools[1].tools[0]",
        )
    assert toolbox.find("look").namespace is None and toolbox.find("close") is None


@pytest.mark.parametrize(
    ("namespace", "flat"), [(None, "read"), ("files", "files__read"), ("mcp__files__", "mcp__files__read")]
)
def test_flat_names(namespace, flat):
    assert flatten("read", namespace) == flat


def test_custom_tools_take_text():
    toolbox = collect([PATCH, {"type": "custom", "name": "say", "format": {"type": "text"}}])
    specs = [tool.spec.function for tool in toolbox.offered]
    assert [spec.text for spec in specs] == [TextRule(syntax="regex", definition="[+-].*"), TextRule()]
    assert all(isinstance(spec, chat.TextFunctionSpec) for spec in specs)


def test_hosted_tools_are_left_out_with_a_log_line(caplog):
    toolbox = collect([SEARCH, LOOK, {"type": "mcp", "server_label": "x", "server_url": "y"}])
    assert [tool.name for tool in toolbox.offered] == ["look"] and toolbox.offered[0].place == "tools[1]"
    assert [line.types for line in caplog.records] == [["mcp", "web_search"]]
    assert [tool.name for tool in toolbox.shown] == ["look"]


@pytest.mark.parametrize(
    "kind",
    [
        "web_search_preview",
        "mcp",
        "code_interpreter",
        "image_generation",
        "file_search",
        "local_shell",
        "tool_search",
    ],
)
def test_hosted_tools_alone_are_refused(kind):
    with pytest.raises(ApiError, match=f"tools of type {kind} are run by OpenAI") as raised:
        collect([{"type": kind}])
    assert raised.value.status == 400 and raised.value.param == "tools[0].type"


@pytest.mark.parametrize(
    ("tool", "place"),
    [
        ({"type": "function"}, "tools[0].name"),
        ({"type": "custom"}, "tools[0].name"),
        ({"type": "namespace", "name": "a"}, "tools[0].tools"),
    ],
)
def test_error_names_the_missing_field(tool, place):
    with pytest.raises(ApiError) as raised:
        collect([tool])
    assert raised.value.param == place


def test_unknown_type_is_invalid():
    with pytest.raises(msgspec.ValidationError, match="telepathy"):
        collect([{"type": "telepathy"}])


def test_tools_of_input_items_are_offered_too():
    asked = msgspec.convert(
        {
            "input": [
                {"type": "additional_tools", "role": "developer", "tools": [AGENTS]},
                {"role": "user", "content": "a"},
            ]
        },
        ResponseRequest,
    )
    toolbox = open_toolbox(asked, asked.input)
    assert toolbox.find("agents__close").place == "input[0].tools[0].tools[0]" and toolbox.shown == ()


def test_allowed_tools_are_named_with_their_namespace():
    def allow(*tools):
        return collect(
            [LOOK, AGENTS, PATCH, SEARCH], tool_choice={"type": "allowed_tools", "mode": "auto", "tools": tools}
        )

    close = {"type": "function", "name": "close", "namespace": "agents"}
    toolbox = allow(close, {"type": "custom", "name": "patch"}, {"type": "web_search"})
    assert [tool.name for tool in toolbox.offered] == ["close", "patch"]
    with pytest.raises(ApiError, match="allows close, which is not in tools"):
        allow({"type": "function", "name": "close"})
    with pytest.raises(ApiError, match="hosted tools only"):
        allow({"type": "web_search"})


def test_answer_repeats_the_tools():
    shown = msgspec.to_builtins(collect([LOOK, AGENTS, PATCH, SEARCH]).shown)
    assert [(tool["type"], tool["name"]) for tool in shown] == [
        ("function", "look"),
        ("namespace", "agents"),
        ("custom", "patch"),
    ]
    assert shown[1]["tools"][1]["format"] == {"type": "text"} and shown[2]["format"] == PATCH["format"]


def test_tools_in_namespaces_count():
    inner = [{"name": f"t{number}"} for number in range(600)]
    spaces = [{"type": "namespace", "name": name, "tools": inner} for name in "ab"]
    assert len(collect(spaces[:1]).offered) == 600
    with pytest.raises(ApiError, match="1200 tools"):
        collect(spaces)
