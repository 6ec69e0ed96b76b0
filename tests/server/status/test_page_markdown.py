"""The page's Markdown parser, run by Node: what it makes of well-formed, unusual and hostile text."""

import json
import shutil
import subprocess

import pytest

from firesteel.server.status.page import FOLDER

NODE = shutil.which("node")
PROGRAM = """
const texts = JSON.parse(require("fs").readFileSync(0, "utf8"));
console.log(JSON.stringify(texts.map(text => {
  const blocks = parseMarkdown(text);
  return JSON.parse(JSON.stringify(blocks, (key, value) => {
    const isProse = ["paragraph", "heading"].includes(value?.type);
    return isProse ? {...value, spans: parseSpans(value.text)} : value;
  }));
})));
"""
TAGS = {"emphasis": "em", "strong": "strong", "deleted": "del", "code": "code", "formula": "formula"}


def parse(*texts):
    """Returns the trees of the texts; paragraphs and headings have their spans."""
    if NODE is None:
        pytest.skip("needs Node: no program node is installed")
    scripts = "\n".join((FOLDER / f"{name}.js").read_text() for name in ("spans", "blocks"))
    done = subprocess.run(
        [NODE, "-e", scripts + PROGRAM], input=json.dumps(texts), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def spell(nodes):
    """Returns spans as a line of tags."""
    return "".join(map(spell_node, nodes))


def spell_node(node):
    match node["type"]:
        case "text":
            return node["text"]
        case "break":
            return "<br>"
        case "link":
            return f"<a {node['href']}>{spell(node['children'])}</a>"
        case kind:
            inside = spell(node["children"]) if "children" in node else node["text"]
            return f"<{TAGS[kind]}>{inside}</{TAGS[kind]}>"


def outline(blocks):
    """Returns blocks as nested lists: kind, then text or parts."""
    return [outline_block(block) for block in blocks]


def outline_block(block):
    match block["type"]:
        case "list":
            kind = f"ol{block['start']}" if block["isOrdered"] else "ul"
            return [kind, *(outline(item["blocks"]) for item in block["items"])]
        case "quote":
            return ["quote", *outline(block["blocks"])]
        case "table":
            return ["table", block["head"], *block["rows"]]
        case "code":
            return [f"code {block['language']}".strip(), block["text"]]
        case "heading":
            return [f"h{block['level']}", block["text"]]
        case "rule":
            return "rule"
        case _:
            return block["text"]


SPANS = {
    "a **b *c* d** e": "a <strong>b <em>c</em> d</strong> e",
    "***x*** __y__ _z_": "<em><strong>x</strong></em> <strong>y</strong> <em>z</em>",
    "a snake_case_name, 2 * 3 * 4, ~5 and ~6": "a snake_case_name, 2 * 3 * 4, ~5 and ~6",
    "**never closed": "**never closed",
    "~~gone~~": "<del>gone</del>",
    "`a *b* <i>` ``c`d`` `open": "<code>a *b* <i></code> <code>c`d</code> `open",
    r"\*a\* \`b\` \q": r"*a* `b` \q",
    r"so \(x_1 * x_2\) and \[y\]": "so <formula>x_1 * x_2</formula> and <formula>y</formula>",
    "one\ntwo<br>three": "one<br>two<br>three",
    "&lt;b&gt; &amp;amp; &bogus;": "<b> &amp; &bogus;",
    '[a *b*](https://c.d/e_(f) "title")': "<a https://c.d/e_(f)>a <em>b</em></a>",
    "![alt](https://a.b/c.png)": "<a https://a.b/c.png>alt</a>",
    "<https://a.b/c> <mailto:a@b.c>": "<a https://a.b/c>https://a.b/c</a> <a mailto:a@b.c>mailto:a@b.c</a>",
    "(see https://a.b/c_d).": "(see <a https://a.b/c_d>https://a.b/c_d</a>).",
    "[a [b](https://c.d/) e] [f]": "[a <a https://c.d/>b</a> e] [f]",
    "*[a*](https://b.c/)": "*<a https://b.c/>a*</a>",
}
BLOCKS = {
    "# A #\n### B\n\ntext\n---\n": [["h1", "A"], ["h3", "B"], ["h2", "text"]],
    "a\nb\n\n* * *\nc": ["a\nb", "rule", "c"],
    "#hashtag\n1984. was": ["#hashtag\n1984. was"],
    "- a\n  - b\n    - c\n- d": [["ul", ["a", ["ul", ["b", ["ul", ["c"]]]]], ["d"]]],
    "text:\n3. a\n\n1. b\n2. c": ["text:\n3. a", ["ol1", ["b"], ["c"]]],
    "2. a\n  - under two spaces\n3. b": [["ol2", ["a", ["ul", ["under two spaces"]]], ["b"]]],
    "- a\n\n  b\n\nc": [["ul", ["a", "b"]], "c"],
    "1. a\n   ```sh\n   x\n     y\n   ```\n2. b": [["ol1", ["a", ["code sh", "x\n  y"]], ["b"]]],
    "> a\n> > b\n> - c\n\nd": [["quote", "a", ["quote", "b"], ["ul", ["c"]]], "d"],
    "```py x\n# a\n\n\tb\n```\nc": [["code py", "# a\n\n\tb"], "c"],
    "~~~\n```\n~~~": [["code", "```"]],
    "````\n```\n````": [["code", "```"]],
    "```js\nnever closed\n# no heading": [["code js", "never closed\n# no heading"]],
    "| a | b |\n|---|:-:|\n| 1 | x\\|y |\n| 2 |\n|3|4|5|\nend": [
        ["table", ["a", "b"], ["1", "x|y"], ["2"], ["3", "4"]],
        "end",
    ],
    "a | b\n--|--|--\n": ["a | b\n--|--|--"],
    "<b>\n<script>x</script>": ["<b>\n<script>x</script>"],
    "a\r\n\r\nb": ["a", "b"],
}


def test_spans_of_a_paragraph():
    trees = parse(*SPANS)
    assert {text: spell(tree[0]["spans"]) for text, tree in zip(SPANS, trees, strict=True)} == SPANS


def test_blocks_of_a_text():
    trees = parse(*BLOCKS)
    assert {text: outline(tree) for text, tree in zip(BLOCKS, trees, strict=True)} == BLOCKS


def test_tasks_and_alignment():
    tasks, table = parse("- [x] a\n- [ ] b\n- c", "|a|b|c|\n|:-|-:|:-:|\n")
    assert [item["task"] for item in tasks[0]["items"]] == [True, False, None]
    assert table[0]["aligns"] == ["left", "right", "center"]


UNSAFE = (
    "javascript:alert(1)",
    "JaVaScRiPt:alert(1)",
    "java\tscript:alert(1)",
    "%6Aavascript:alert(1)",
    "&#106;avascript:alert(1)",
    "data:text/html,<script>alert(1)</script>",
    "vbscript:msgbox(1)",
    "file:///etc/passwd",
    "blob:null/1",
    "/v1/models",
    "//evil.example",
    "https:evil",
)


def test_links_elsewhere_than_to_the_web_and_mail_are_text():
    forms = ("[a]({})", "[a](<{}>)", "![a]({})", "<{}>")
    texts = [form.format(address) for address in UNSAFE for form in forms]
    for text, tree in zip(texts, parse(*texts), strict=True):
        assert "<a " not in spell(tree[0]["spans"]), text


def fill(text, size=100_000):
    return (text * (size // len(text) + 1))[:size]


HOSTILE = {
    "spaces after a fence": "```" + " " * 1_000_000 + "`",
    "tildes": "~" * 1_000_000 + "`",
    "almost a table": "a|b\n-" + " " * 1_000_000 + "x",
    "almost a rule": "- " * 50_000 + "x",
    "marks that open": fill("*a ", 20_000),
    "marks that close": "*a " * 3000 + "a* " * 3000,
    "two kinds of marks": fill("*_", 20_000),
    "open brackets": fill("[", 20_000),
    "open targets": fill("[a](https://x ", 20_000),
    "spaces in a target": "[a](" + " " * 19_000,
    "runs of backticks": " ".join("`" * count for count in range(1, 190)),
    "open formulas": fill("\\(", 20_000),
    "quotes in quotes": fill("> "),
    "lists in lists": "\n".join("  " * depth + "- x" for depth in range(300)),
    "empty items": fill("-\n"),
    "rows": "|a|\n|-|\n" + fill("|x|\n"),
    "columns": "|" + "a|" * 20_000 + "\n|" + "-|" * 20_000 + "\n|x|",
    "one line": "a" * 100_000,
    "code": fill("```\na\n```\n"),
}


def test_hostile_text_is_parsed_in_bounded_size_and_depth():
    """A regular expression that can match in two ways needs quadratic time: many minutes for these lines."""
    for name, tree in zip(HOSTILE, parse(*HOSTILE.values()), strict=True):
        assert depth_of(tree) <= 60, name
        assert count_cells(tree) <= 20_000, name


def depth_of(value):
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


def count_cells(value):
    if isinstance(value, dict):
        parts = [part for key, part in value.items() if key != "spans"]
        return 1 + sum(map(count_cells, parts))
    if isinstance(value, list):
        return sum(map(count_cells, value)) + sum(isinstance(part, str) for part in value)
    return 0


def test_text_beyond_the_limits_is_shown_as_it_was_written():
    rows = "|a|\n|-|\n" + "|x|\n" * 700
    items = "".join(f"- {number}\n" for number in range(9000))
    table, list_, deep = parse(rows, items, "> " * 30 + "x")
    assert len(table[0]["rows"]) == 500 and table[0]["rest"] == "\n".join(["|x|"] * 200)
    shown = len(list_[0]["items"])
    assert list_[1]["type"] == "plain" and list_[1]["text"].startswith(f"- {shown}\n")
    assert "> > x" in json.dumps(deep)
