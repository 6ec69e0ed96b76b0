"""What a hostile model can do to the page: nothing runs, nothing is loaded, nothing freezes, no text is lost."""

import json

import pytest

from tests.server.status.page_server import pieces, serving
from tests.server.status.page_steps import ENDED, say

pytestmark = pytest.mark.browser

PLANT = "<script>window.planted = 1</script><img src=x onerror='window.planted = 1'><b id=planted>bold</b>"
ATTACKS = (
    PLANT,
    "<iframe src=javascript:alert(1)></iframe><svg onload=alert(1)><style>*{display:none}</style>",
    "[a](javascript:window.planted=1) [b](JAVASCRIPT:x) [c](  javascript:x) [d](data:text/html,x) ![e](https://evil.example/e.png)",
    "[f](https://evil.example/\"onmouseover=\"window.planted=1) <a href='javascript:x'>g</a> <javascript:x>",
    "[x]: javascript:window.planted=1\n\n[x][x] [x]",
    f"```html\n{PLANT}\n```",
    f"| {PLANT} |\n|-|\n| {PLANT} |",
    f"# {PLANT}\n> {PLANT}\n- {PLANT}",
    f"```{PLANT}\nx",
    "**[a**](javascript:x) `[b](javascript:x)` <https://a.b/'onclick='x>",
    "\u202ereversed\u2066 \x00\x1b[31m \ufeff\ud7ff",
)


def assert_harmless(browser, server):
    assert browser.run("window.planted === undefined && document.getElementById('planted') === null")
    assert (
        browser.run("document.querySelectorAll('.turn :is(script, img, iframe, svg, style, object, base)').length")
        == 0
    )
    schemes = browser.run("[...document.querySelectorAll('.turn a')].map(link => link.protocol)")
    assert set(schemes) <= {"https:", "http:", "mailto:"}
    handlers = "[...document.querySelectorAll('.turn *')].flatMap(node => node.getAttributeNames())"
    assert set(browser.run(handlers)) <= {
        "aria-label",
        "class",
        "href",
        "placeholder",
        "rel",
        "role",
        "rows",
        "tabindex",
        "target",
        "title",
        "type",
        "start",
        "open",
    }
    assert browser.errors == []
    assert all(url.startswith((server.url, "data:")) for url in browser.requests)


def test_what_models_users_and_tools_write_is_never_markup(browser):
    text = "\n\n".join(ATTACKS)
    call = {"index": 0, "id": PLANT, "function": {"name": PLANT, "arguments": PLANT}}
    with serving([{"reasoning": text}, *pieces(text, 3), {"tool_calls": [call]}]) as server:
        browser.open(f"{server.url}/")
        say(browser, PLANT)
        browser.wait_for(ENDED)
        assert browser.run("document.querySelector('.turn.user').innerText") == PLANT
        assert browser.run("document.querySelector('.reasoning').textContent").startswith(PLANT)
        assert browser.run("document.querySelector('.content p').innerText") == PLANT
        assert browser.run("document.querySelector('.content pre code').textContent") == PLANT
        assert browser.run("document.querySelector('.content td').innerText") == PLANT
        assert browser.run("document.querySelector('.call b').innerText") == PLANT
        browser.run(
            "[...document.querySelectorAll('.turn a')].forEach(a => a.dispatchEvent(new Event('mouseover')))"
        )
        assert_harmless(browser, server)
        saved = browser.run("localStorage.getItem('firesteel.chat')")
        assert json.loads(saved)["turns"][1]["content"] == text
        browser.call("Page.reload")
        browser.wait_for("document.querySelectorAll('.turn').length === 2")
        assert_harmless(browser, server)


def test_error_of_the_server_is_text(browser):
    with serving("x") as server:
        browser.open(f"{server.url}/")
        body = json.dumps(json.dumps({"error": {"message": PLANT}}))
        browser.run(f"window.fetch = async () => new Response({body}, {{status: 400}}); 0")
        say(browser, "x")
        assert browser.wait_for("document.querySelector('.error')?.innerText") == PLANT
        assert_harmless(browser, server)


def test_policy_forbids_markup_and_scripts_that_a_mistake_would_let_in(browser):
    with serving("x") as server:
        browser.open(f"{server.url}/")
        write = "document.body.innerHTML = '<b>x</b>'"
        assert (
            browser.run(f"(() => {{ try {{ {write}; }} catch (error) {{ return error.name; }} }})()") == "TypeError"
        )
        browser.run(
            "(() => { const made = document.createElement('a'); made.href = 'javascript:void(window.planted = 1)';"
            " document.body.append(made); made.click(); })()"
        )
        browser.run("new Promise(done => setTimeout(done, 200))")
        assert browser.run("window.planted === undefined")


def fill(text, size=100_000):
    return (text * (size // len(text) + 1))[:size]


LONG = {
    "prose": fill("Some **bold** words, `code` and a [link](https://a.b/c).\n\n- one\n- two\n\n"),
    "table": "|a|b|c|\n|-|-|-|\n" + fill("|1|**2**|`3`|\n"),
    "columns": "|" + "a|" * 20_000 + "\n|" + "-|" * 20_000 + "\n|x|",
    "unclosed fence": "```python\n" + fill("x = 1  # comment\n"),
    "one line": fill("word "),
    "one word": "a" * 100_000,
    "marks": fill("*_a"),
    "quotes": fill("> "),
    "items": fill("-\n"),
    "code": fill("```\na\n```\n"),
}


@pytest.mark.parametrize("name", LONG)
def test_long_answer_in_small_pieces_leaves_the_page_usable(browser, name):
    text = LONG[name]
    with serving(pieces(text, 5)) as server:
        browser.open(f"{server.url}/")
        say(browser, "go")
        browser.wait_for("document.querySelector('.assistant.busy .content')?.childNodes.length")
        browser.type("#text", "typed meanwhile")
        assert browser.run("document.getElementById('text').value") == "typed meanwhile"
        browser.wait_for(ENDED)
        assert browser.run("document.querySelector('.error')") is None
        assert browser.run("state.turns[1].content") == text
        shown = browser.run("document.querySelector('.content').textContent")
        for letter in set("a1x=") & set(text):
            assert shown.count(letter) == visible(text).count(letter), letter
        assert browser.run("document.querySelectorAll('.turn *').length") < 20_000
        assert browser.errors == []


def visible(text):
    """Returns the text without what Markdown takes away from it: addresses of links, and names of languages."""
    return text.replace("](https://a.b/c)", "").replace("```python", "python")
