"""The page's conversation in a browser: answers, reasoning, calls of tools, stop, regenerate, errors."""

import json

import pytest

from tests.server.status.page_server import serving
from tests.server.status.page_steps import ANSWER, CALL, DEMO, ENDED, messages, press_escape, reload, say

pytestmark = pytest.mark.browser

TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


def test_markdown_becomes_elements(browser):
    with serving(DEMO) as server:
        browser.open(f"{server.url}/")
        say(browser, "show")
        browser.wait_for(ENDED)
        texts = "Object.fromEntries({}.map(tag => [tag, document.querySelector('.content ' + tag)?.innerText]))"
        tags = ["h3", "strong", "em", "del", "p > code", "a", "ol > li > ul > li.done", "blockquote", "th.right"]
        assert browser.run(texts.format(json.dumps(tags))) == {
            "h3": "Title",
            "strong": "bold",
            "em": "slanted",
            "del": "deleted",
            "p > code": "code",
            "a": "a link",
            "ol > li > ul > li.done": "done",
            "blockquote": "quoted",
            "th.right": "right",
        }
        assert browser.run("document.querySelector('figure.code code').textContent") == 'def f():\n    return "<b>"'
        link = browser.run("(a => [a.href, a.rel, a.target])(document.querySelector('.content a'))")
        assert link == ["https://example.org/a", "noopener noreferrer nofollow", "_blank"]
        assert browser.errors == []


def test_address_as_the_label_of_a_link_leads_where_the_link_does(browser):
    with serving("[https://a.example and **https://b.example**](https://c.example/)") as server:
        browser.open(f"{server.url}/")
        say(browser, "show")
        browser.wait_for(ENDED)
        links = browser.run("[...document.querySelectorAll('.content a')].map(link => link.href)")
        assert links == ["https://c.example/"]
        assert browser.run(ANSWER) == "https://a.example and https://b.example"


def test_growing_text_keeps_its_finished_nodes(browser):
    """An answer that is built anew with each token loses the reader's selection and time."""
    with serving("x") as server:
        browser.open(f"{server.url}/")
        kept = browser.run(
            f"""(() => {{
              const text = {json.dumps(DEMO)}, box = document.createElement("div"), view = new MarkdownView(box);
              const whole = document.createElement("div");
              for (let end = 0; end <= text.length; end++) view.update(text.slice(0, end));
              new MarkdownView(whole).update(text);
              const first = box.firstChild;
              view.update(text + "more");
              const isKept = first === box.firstChild;
              view.update(text);
              return [isKept, box.isEqualNode(whole)];
            }})()"""
        )
        assert kept == [True, True]


@pytest.mark.parametrize("has_clipboard", [True, False])
def test_code_and_answers_are_copied(browser, has_clipboard):
    with serving(DEMO) as server:
        browser.call(
            "Browser.grantPermissions",
            permissions=["clipboardReadWrite", "clipboardSanitizedWrite"],
            origin=server.url,
        )
        browser.open(f"{server.url}/")
        say(browser, "show")
        browser.wait_for(ENDED)
        if not has_clipboard:  # a page without HTTPS on another machine
            browser.run("navigator.clipboard.writeText = () => Promise.reject(new Error('no'))")
        browser.run("document.querySelector('figure.code').scrollIntoView({block: 'center'})")
        browser.click("figure.code button")
        browser.wait_for("document.querySelector('figure.code button').innerText === 'Copied'")
        assert browser.run("navigator.clipboard.readText()") == 'def f():\n    return "<b>"'
        browser.run("document.querySelector('footer').scrollIntoView()")
        browser.click("footer button")
        browser.wait_for("document.querySelector('footer button').innerText === 'Copied'")
        assert browser.run("navigator.clipboard.readText()") == DEMO
        browser.wait_for("document.querySelector('footer button').innerText === 'Copy'")


def test_answer_is_stopped_by_escape_and_regenerated(browser):
    with serving("never ends " * 500, "another answer", "yes") as server:
        server.pause_s = 0.02
        browser.open(f"{server.url}/")
        say(browser, "go")
        browser.wait_for(f"document.querySelector('.assistant') && {ANSWER}.length > 20")
        assert browser.run("document.getElementById('talk').getAttribute('aria-busy')") == "true"
        press_escape(browser)
        assert "stopped" in browser.wait_for("document.querySelector('.figures')?.innerText")
        assert browser.run("document.getElementById('talk').getAttribute('aria-busy')") == "false"
        browser.run("document.querySelector('.again').scrollIntoView()")
        browser.click(".again")
        browser.wait_for(f"{ENDED} && {ANSWER} === 'another answer'")
        assert browser.run("document.querySelectorAll('.turn').length") == 2
        say(browser, "is it?")
        browser.wait_for(f"{ENDED} && {ANSWER} === 'yes'")
        assert browser.run("getComputedStyle(document.querySelector('.again')).display") == "none"
        assert messages(server.asked[1]) == [("user", "go")]
        assert messages(server.asked[2]) == [("user", "go"), ("assistant", "another answer"), ("user", "is it?")]
        assert browser.errors == []


def test_reasoning_is_folded_and_the_choice_is_kept(browser):
    with serving([{"reasoning": "Let me think."}, {"content": "Done."}]) as server:
        browser.open(f"{server.url}/")
        say(browser, "one")
        browser.wait_for(ENDED)
        assert browser.run("document.querySelector('details').open") is False
        assert browser.run("document.querySelector('summary').innerText") == "Reasoning · 3 words"
        browser.click("summary")
        browser.wait_for("document.querySelector('details').open")
        assert browser.run("document.querySelector('.reasoning').innerText") == "Let me think."
        reload(browser)
        assert browser.run("document.querySelector('details').open") is True
        assert browser.errors == []


def test_calls_are_shown_and_their_results_are_sent(browser):
    with serving(CALL, "It is **warm**.") as server:
        browser.open(f"{server.url}/")
        browser.click("#show-tools")
        browser.type("#tools", json.dumps(TOOLS))
        say(browser, "the weather?")
        browser.wait_for(ENDED)
        names = browser.run("[...document.querySelectorAll('.call b')].map(name => name.innerText)")
        arguments = browser.run("[...document.querySelectorAll('.call pre')].map(text => text.innerText)")
        assert names == ["weather", "time"] and list(map(json.loads, arguments)) == [{"city": "Paris"}, {}]
        reload(browser)
        assert browser.run("document.querySelectorAll('.call').length") == 2
        browser.type(".results textarea:nth-of-type(1)", "25 degrees")
        browser.type(".results textarea:nth-of-type(2)", "noon")
        browser.run("document.querySelector('.results').requestSubmit()")
        browser.wait_for(f"{ENDED} && {ANSWER} === 'It is warm.'")
        assert server.asked[0]["tools"] == server.asked[1]["tools"] == TOOLS
        question, call, *results = server.asked[1]["messages"]
        assert question["content"] == "the weather?" and call["reasoning_content"] == "I need the weather."
        assert call["tool_calls"][0] == {
            "id": "call_1",
            "type": "function",
            "function": {"name": "weather", "arguments": '{"city": "Paris"}'},
        }
        assert results == [
            {"role": "tool", "tool_call_id": "call_1", "content": "25 degrees"},
            {"role": "tool", "tool_call_id": "call_2", "content": "noon"},
        ]
        say(browser, "and tomorrow?")
        browser.wait_for("document.querySelectorAll('.figures').length === 3")
        assert "reasoning_content" not in server.asked[2]["messages"][1]
        assert browser.errors == []


def test_call_that_was_stopped_is_shown_but_not_sent(browser):
    endless = [{"tool_calls": [{"index": 0, "function": {"arguments": " "}}]}] * 1000
    with serving([{"content": "Well."}, *CALL[:3], *endless], "fine") as server:
        server.pause_s = 0.02
        browser.open(f"{server.url}/")
        say(browser, "one")
        browser.wait_for("document.querySelector('.call')")
        press_escape(browser)
        browser.wait_for(ENDED)
        assert browser.run("document.querySelector('.results')") is None
        say(browser, "two")
        browser.wait_for(f"{ENDED} && {ANSWER} === 'fine'")
        assert server.asked[1]["messages"][1] == {"role": "assistant", "content": "Well."}


@pytest.mark.parametrize(("text", "flaw"), [("[{", "not JSON"), ('{"name": "f"}', "must be a JSON list")])
def test_tools_that_cannot_be_read_are_refused(browser, text, flaw):
    with serving("fine") as server:
        browser.open(f"{server.url}/")
        browser.click("#show-tools")
        browser.type("#tools", text)
        say(browser, "hello")
        assert flaw in browser.wait_for("document.getElementById('notice').innerText")
        assert browser.run("[find('text').value, find('tools').getAttribute('aria-invalid')]") == ["hello", "true"]
        browser.run("find('tools').value = ''")
        browser.click("#send")
        browser.wait_for(ENDED)
        assert len(server.asked) == 1 and "tools" not in server.asked[0]
        assert browser.run("document.getElementById('notice').hidden")


def test_failed_question_is_tried_again_or_left_out(browser):
    with serving([{}], "fine") as server:
        browser.open(f"{server.url}/")
        browser.run("window.really = fetch; window.fetch = () => Promise.reject(new Error('cut'))")
        say(browser, "one")
        assert browser.wait_for("document.querySelector('.error')?.innerText") == "cut"
        browser.run("window.fetch = window.really")
        say(browser, "two")
        browser.wait_for("document.querySelectorAll('.figures').length === 2")
        assert messages(server.asked[0]) == [("user", "two")]
        browser.run("window.fetch = () => Promise.reject(new Error('cut'))")
        say(browser, "three")
        browser.wait_for("document.querySelectorAll('.error').length === 2")
        browser.run("window.fetch = window.really; [...document.querySelectorAll('.again')].at(-1).click()")
        browser.wait_for(f"{ENDED} && {ANSWER} === 'fine'")
        assert messages(server.asked[1]) == [("user", "three")]
