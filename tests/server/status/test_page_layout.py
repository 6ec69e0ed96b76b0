"""The page at several widths and in both colour schemes: everything fits, is named and can be reached and read."""

import pytest

from tests.server.status.page_server import pieces, serving
from tests.server.status.page_steps import CALL, DEMO, ENDED, press_escape, say

pytestmark = pytest.mark.browser

CONTRAST = """(() => {
  const parse = colour => colour.match(/[\\d.]+/g).map(Number);
  const light = ([red, green, blue]) => [red, green, blue].map(part => part / 255)
    .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, place) => sum + part * [0.2126, 0.7152, 0.0722][place], 0);
  const ground = node => {
    const colour = parse(getComputedStyle(node).backgroundColor);
    return colour[3] === 0 ? ground(node.parentElement) : colour;
  };
  const low = [];
  for (const node of document.querySelectorAll("#chat *")) {
    const hasText = [...node.childNodes].some(child => child.nodeType === 3 && child.data.trim());
    if (!hasText || !node.offsetParent) continue;
    const [one, other] = [light(parse(getComputedStyle(node).color)), light(ground(node))].sort((a, b) => b - a);
    const ratio = (one + 0.05) / (other + 0.05);
    if (ratio < 4.5) low.push([node.tagName, node.className, ratio]);
  }
  return low;
})()"""


def test_everything_has_a_name_and_is_reached_by_the_keyboard(browser):
    with serving([{"reasoning": "Hm."}, *pieces(DEMO), *CALL]) as server:
        browser.open(f"{server.url}/")
        say(browser, "show")
        browser.wait_for(ENDED)
        browser.run("reveal('tools', true); reveal('system', true); 0")
        nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
        used = ("button", "textbox", "combobox", "spinbutton", "log", "article", "link", "img")
        shown = [node for node in nodes if not node["ignored"] and node["role"]["value"] in used]
        nameless = [node["role"]["value"] for node in shown if not node.get("name", {}).get("value")]
        assert len(shown) > 15 and nameless == []
        browser.run("find('talk').focus()")
        reached = set()
        for _ in range(40):
            for kind in ("keyDown", "keyUp"):
                browser.call("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
            reached.add(browser.run("document.activeElement.id || document.activeElement.tagName"))
        assert {"SUMMARY", "A", "PRE", "BUTTON", "TEXTAREA", "text", "tools", "system", "send", "new"} <= reached
        press_escape(browser)
        assert browser.run("document.activeElement.id") == "text"


@pytest.mark.parametrize("is_dark", [False, True])
@pytest.mark.parametrize("width", [400, 1600])
def test_everything_fits_and_can_be_read(browser, width, is_dark):
    with serving([{"reasoning": "Hm."}, *pieces(DEMO + "\n`" + "long" * 100 + "`\n"), *CALL]) as server:
        browser.open(f"{server.url}/", width=width, is_dark=is_dark)
        browser.run("state.showsReasoning = true")
        say(browser, "show " + "w" * 300)
        browser.wait_for(ENDED)
        assert browser.run("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
        assert browser.run("find('talk').scrollWidth - find('talk').clientWidth") == 0
        assert browser.run(CONTRAST) == []
