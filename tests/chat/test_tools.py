"""Tools as TypeScript-like text, equal to that of openai-harmony to the character."""

from __future__ import annotations

import json
import random

import pytest

from firesteel.chat.tools import TextRule, Tool, render_json, render_namespace


def library_text(library, tools: list[Tool]) -> str:
    import openai_harmony as peer

    described = [peer.ToolDescription.new(tool.name, tool.description, tool.parameters) for tool in tools]
    content = peer.DeveloperContent.new().with_function_tools(described)
    token_ids = library.render(peer.Message.from_role_and_content(peer.Role.DEVELOPER, content))
    _, _, text = library.decode(token_ids).partition("# Tools\n\n## functions\n\n")
    return text.removesuffix("<|end|>")


def assert_same_tools(library, schema_maker, seeds: range) -> None:
    for seed in seeds:
        tools = schema_maker(random.Random(seed)).tools()
        assert render_namespace(tools) == library_text(library, tools), f"seed {seed}: {tools}"


def test_random_schemas_render_as_openai_harmony(library, schema_maker):
    assert_same_tools(library, schema_maker, range(1000))


@pytest.mark.slow
def test_many_random_schemas_render_as_openai_harmony(library, schema_maker):
    assert_same_tools(library, schema_maker, range(1000, 31_000))


def test_tool_with_a_text_names_its_grammar():
    rule = TextRule(syntax="lark", definition='start: "a"\n  | "b"\n')
    assert render_namespace([Tool(name="say", description="Says it.", text=rule)]) == (
        "namespace functions {\n\n"
        "// Says it.\n"
        "// The argument is plain text: write it as it is, neither quoted nor as JSON. "
        "It must match this lark grammar:\n"
        '// start: "a"\n//   | "b"\n'
        "type say = (_: string) => any;\n\n"
        "} // namespace functions"
    )
    free = render_namespace([Tool(name="say", description="", text=TextRule())])
    assert "plain text" in free and "grammar" not in free


def test_typical_tool_equals_the_published_text():
    schema = {
        "type": "object",
        "properties": {
            "location": {"type": "string", "description": "City, e.g. Oslo"},
            "format": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
            "days": {"type": ["integer", "null"]},
        },
        "required": ["location"],
    }
    weather = Tool(name="get_weather", description="Weather now.\nCached.", parameters=schema)
    here = Tool(name="get_location", description="Where the user is.")
    assert render_namespace([here, weather]) == (
        "namespace functions {\n\n"
        "// Where the user is.\ntype get_location = () => any;\n\n"
        "// Weather now.\n// Cached.\ntype get_weather = (_: {\n"
        "// City, e.g. Oslo\nlocation: string,\n"
        'format?: "celsius" | "fahrenheit", // default: celsius\n'
        "days?: number | null,\n"
        "}) => any;\n\n"
        "} // namespace functions"
    )


def test_namespace_is_named():
    text = render_namespace([Tool(name="f", description="")], "browser")
    assert text == "namespace browser {\n\ntype f = () => any;\n\n} // namespace browser"


def test_json_is_compact_and_reads_back():
    value = {"a": [1, 2.5, None, True, 'é\n"'], "b": {}, "c": 1e-7, "d": -1e-5, "e": 1e22}
    text = render_json(value)
    assert text == '{"a":[1,2.5,null,true,"é\\n\\""],"b":{},"c":1e-7,"d":-0.00001,"e":1e22}'
    assert json.loads(text) == value
