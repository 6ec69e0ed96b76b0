"""The page at /: its headers, and its behaviour in a browser."""

import json
import re
import threading
import urllib.request

import pytest

from firesteel.server.status.page import FOLDER, read_page

FRANCE = "What is the capital of France? Please reply with one word only"
OVER = "document.getElementById('stop').hidden"


def test_the_page_asks_for_nothing_outside_this_server():
    text, _ = read_page()
    outside = set(re.findall(r"https?://[\w.][^\s'\"]+", text))
    assert outside == {"http://www.w3.org/2000/svg"}  # a name, not a place
    assert not re.search(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=\"(?!data:)", text)


def test_the_page_never_makes_markup_of_text():
    text, policy = read_page()
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|setHTML|parseFromString|document\.write|\beval\(|new Function",
        text,
    )
    assert "require-trusted-types-for 'script'; trusted-types 'none'" in policy


def test_the_page_holds_every_file_of_its_folder_and_the_policy_names_each():
    text, policy = read_page()
    scripts, styles = ([path.read_text() for path in FOLDER.glob(f"*.{kind}")] for kind in ("js", "css"))
    assert all(f"<script>\n{script}</script>" in text for script in scripts)
    assert all(f"<style>\n{style}</style>" in text for style in styles)
    assert text.count("<script>") == len(scripts) and text.count("<style>") == len(styles)
    assert len(set(re.findall(r"'sha256-[\w+/=]{44}'", policy))) == len(scripts) + len(styles)
    assert "unsafe" not in policy
    assert not re.search(r" on\w+=\"| style=\"", text)


@pytest.mark.browser
@pytest.mark.parametrize("width", [400, 1600])
def test_a_question_is_answered_with_its_reasoning_and_figures(browser, open_kindling, width):
    browser.open(f"{open_kindling.url}/", width=width)
    assert browser.wait_for("document.getElementById('model').textContent") == "kindling"
    assert browser.run("document.getElementById('context').innerText") == "16,384 tokens of context"
    browser.wait_for("document.getElementById('health').className === 'ready'")
    browser.type("#text", FRANCE)
    browser.press_enter()
    browser.wait_for("document.querySelector('.figures')")
    assert browser.run("document.querySelector('.turn.user').innerText") == FRANCE
    assert browser.run("document.querySelector('.assistant .content').innerText") == "Paris"
    assert "Paris" in browser.run("document.querySelector('.assistant .reasoning').textContent")
    assert re.fullmatch(
        r"\d+ tokens · [\d.]+ tokens/s · first after [\d.]+ s",
        browser.run("document.querySelector('.figures').innerText"),
    )
    assert browser.run("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    browser.wait_for(
        "[...document.querySelectorAll('#ledger tbody tr')].some(row => row.cells[0].innerText === 'moe_matmul')"
    )
    assert browser.errors == []
    assert all(url.startswith((open_kindling.url, "data:")) for url in browser.requests)


@pytest.mark.browser
def test_kernels_have_the_verdict_on_their_machine_code(browser, open_kindling):
    browser.open(f"{open_kindling.url}/")
    codes = [("fc1", "int8"), ("fc1", "int8"), ("fc1", None), ("sum", "none"), ("other", "bf16")]
    row = {
        "op": "moe",
        "implementation": "cuda",
        "activation": "",
        "calls": 5,
        "launches": {"fc1": 3, "sum": 1},
        "artefacts": [{"kernel": kernel, "verdict": verdict} for kernel, verdict in codes],
    }
    words = browser.run(f"ranRow({json.dumps(row)}).lastChild.textContent")
    assert re.fullmatch(r"3 . fc1 \(int8\); 1 . sum", words), words


@pytest.mark.browser
def test_reasoning_is_dimmed_in_both_schemes(browser, open_kindling):
    colour = "getComputedStyle(document.querySelector({!r})).color"
    seen = []
    for is_dark in (False, True):
        browser.open(f"{open_kindling.url}/", is_dark=is_dark)
        browser.type("#text", FRANCE)
        browser.press_enter()
        browser.wait_for("document.querySelector('.figures')")
        seen += [browser.run(colour.format(place)) for place in (".assistant .content", ".reasoning")]
    assert len(set(seen)) == 4
    assert brightness(seen[0]) < brightness(seen[1]) and brightness(seen[2]) > brightness(seen[3])


def brightness(colour):
    return sum(map(int, re.findall(r"\d+", colour)[:3]))


@pytest.mark.browser
def test_answer_can_be_stopped_and_the_next_is_complete(browser, open_kindling):
    browser.open(f"{open_kindling.url}/")
    browser.type("#text", "What is 347 + 285?")
    browser.click("#send")
    browser.wait_for("document.querySelector('.reasoning')")
    browser.click("#stop")
    browser.wait_for("document.querySelector('.figures')?.innerText.includes('stopped')")
    browser.wait_for(OVER)
    browser.type("#text", FRANCE)
    browser.press_enter()
    browser.wait_for("document.querySelectorAll('.figures').length === 2")
    assert browser.run("[...document.querySelectorAll('.assistant .content')].at(-1).innerText") == "Paris"
    assert browser.errors == []


@pytest.mark.browser
def test_server_accepts_the_tools_and_results_that_the_page_sends(browser, open_server):
    call = '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Paris"}<|call|>'
    server = open_server(f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{call}")
    browser.open(f"{server.url}/")
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    browser.run(f"find('tools').value = {json.dumps(json.dumps(tools))}")
    browser.type("#text", "the weather?")
    browser.press_enter()
    browser.wait_for("document.querySelector('.results')")
    assert browser.run("document.querySelector('.call').innerText").split("\n")[0] == "Call of weather"
    server.engine.script = "<|channel|>final<|message|>**warm**<|return|>"
    browser.type(".results textarea", "25 degrees")
    browser.run("document.querySelector('.results').requestSubmit()")
    browser.wait_for("document.querySelector('.content strong')?.innerText === 'warm'")
    prompt = server.engine.tokenizer.decode(server.engine.requests[1].token_ids)
    assert "to=functions.weather" in prompt and "25 degrees" in prompt and "Hm." in prompt
    assert browser.errors == []


@pytest.mark.browser
def test_running_requests_speed_and_cache_are_live(browser, open_kindling):
    browser.open(f"{open_kindling.url}/")
    body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 300, "ignore_eos": True}
    asked = urllib.request.Request(
        f"{open_kindling.url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    thread = threading.Thread(target=lambda: urllib.request.urlopen(asked).read())
    thread.start()
    browser.wait_for("document.getElementById('running').innerText === '1'")
    browser.wait_for("Number(document.getElementById('speed').innerText) > 1")
    browser.wait_for("document.getElementById('cache-text').innerText.match(/^[1-9]\\d* of .* pages held/)")
    browser.wait_for("document.querySelector('#plot polyline').getAttribute('points').split(' ').length > 2")
    thread.join()
    browser.wait_for("document.getElementById('running').innerText === '0'")
    assert browser.errors == []


@pytest.mark.browser
def test_key_is_requested_and_an_error_is_shown(browser, start_serve, tmp_path):
    with start_serve("--port", "0", "--api-key", "secret", directory=tmp_path) as started:
        browser.open(f"{started.url}/")
        browser.wait_for("!document.getElementById('key-form').hidden")
        browser.type("#text", FRANCE)
        browser.press_enter()
        assert "no API key" in browser.wait_for("document.querySelector('.turn .error')?.innerText")
        browser.type("#key", "secret")
        browser.press_enter()
        assert browser.wait_for("document.getElementById('model').textContent") == "kindling"
        assert browser.run("document.getElementById('key-form').hidden")
        browser.type("#text", FRANCE)
        browser.press_enter()
        browser.wait_for("[...document.querySelectorAll('.assistant .content')].at(-1)?.innerText === 'Paris'")
        refused = [error for error in browser.errors if "401" not in error.get("text", "")]
        assert refused == []
        browser.wait_for(OVER)
    browser.wait_for("document.getElementById('health').className === 'lost'")
