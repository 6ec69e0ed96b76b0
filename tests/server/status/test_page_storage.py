"""What the page keeps in the browser's storage, and what it does without it."""

import json

import pytest

from tests.server.status.page_server import serving
from tests.server.status.page_steps import ANSWER, ENDED, messages, reload, say

pytestmark = pytest.mark.browser


def test_conversation_survives_a_reload_until_it_is_cleared(browser):
    with serving([{"reasoning": "Hm."}, {"content": "# Hi"}], "second") as server:
        browser.open(f"{server.url}/")
        browser.run("find('system').value = 'Be kind.'; find('effort').value = 'high'")
        say(browser, "one")
        browser.wait_for(ENDED)
        before = browser.run("document.getElementById('talk').innerText")
        reload(browser)
        assert browser.run("document.getElementById('talk').innerText") == before
        assert browser.run("document.querySelector('.content h3').innerText") == "Hi"
        assert browser.run("[find('system').value, find('system').hidden, find('effort').value]") == [
            "Be kind.",
            False,
            "high",
        ]
        say(browser, "two")
        browser.wait_for(f"{ENDED} && {ANSWER} === 'second'")
        expected = [("system", "Be kind."), ("user", "one"), ("assistant", "# Hi"), ("user", "two")]
        assert messages(server.asked[1]) == expected and server.asked[1]["reasoning_effort"] == "high"
        browser.click("#new")
        browser.wait_for("!document.querySelector('.turn')")
        assert browser.run("localStorage.length") == 0
        reload(browser)
        assert browser.run("document.querySelectorAll('.turn').length") == 0
        assert not browser.run("document.getElementById('hint').hidden")
        assert browser.errors == []


def test_answer_cut_by_a_reload_is_kept_as_far_as_it_came(browser):
    with serving("word " * 2000) as server:
        server.pause_s = 0.02
        browser.open(f"{server.url}/")
        say(browser, "go")
        browser.wait_for(f"document.querySelector('.assistant') && {ANSWER}.length > 20")
        reload(browser)
        assert "broken off" in browser.run("document.querySelector('.figures').innerText")
        assert browser.run(ANSWER).startswith("word word word")


def test_tabs_show_the_same_conversation(browser):
    with serving("answer") as server:
        browser.open(f"{server.url}/")
        first = browser._session
        browser.open(f"{server.url}/")
        say(browser, "hello")
        browser.wait_for(ENDED)
        browser._session = first
        browser.wait_for(f"document.querySelector('.assistant') && {ANSWER} === 'answer'")


@pytest.mark.parametrize(
    "saved",
    [
        "{",
        "null",
        "[]",
        '{"version": 99, "turns": []}',
        '{"version": 1, "turns": [{"role": "user", "content": {}}]}',
    ],
)
def test_damaged_storage_is_reported_and_the_page_works(browser, saved):
    with serving("fine") as server:
        browser.open(f"{server.url}/")
        browser.run(f"localStorage.setItem('firesteel.chat', {json.dumps(saved)})")
        reload(browser)
        assert "cannot be shown" in browser.run("document.getElementById('notice').innerText")
        say(browser, "hello")
        browser.wait_for(f"{ENDED} && {ANSWER} === 'fine'")
        reload(browser)
        assert browser.run(ANSWER) == "fine"
        assert browser.run("document.getElementById('notice').hidden") and browser.errors == []


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("Storage.prototype.setItem = () => { throw new DOMException('the quota is full'); }", "the quota is full"),
        (
            "Object.defineProperty(window, 'localStorage', {get() { throw new DOMException('it is blocked'); }})",
            "it is blocked",
        ),
    ],
)
def test_page_works_without_storage_and_says_so(browser, script, reason):
    with serving("fine") as server:
        browser.open("about:blank?")
        browser.call("Page.addScriptToEvaluateOnNewDocument", source=script)
        browser.call("Page.navigate", url=f"{server.url}/")
        browser.wait_for("document.readyState === 'complete' && document.getElementById('model')?.innerText")
        say(browser, "hello")
        browser.wait_for(f"{ENDED} && {ANSWER} === 'fine'")
        notice = browser.run("document.getElementById('notice').innerText")
        assert "will not survive a reload" in notice and reason in notice
        assert browser.errors == []
