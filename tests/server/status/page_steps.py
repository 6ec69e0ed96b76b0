"""Steps of a reader on the page, and answers for it."""

ENDED = "!document.querySelector('.busy') && document.querySelector('.figures')"
ANSWER = "[...document.querySelectorAll('.assistant .content')].at(-1).innerText"
DEMO = """# Title
Some **bold**, *slanted* and ~~deleted~~ text with `code`, [a link](https://example.org/a) and a line<br>break.

1. first
   - [x] done
   - [ ] open
2. second

> quoted

| left | right |
|:-----|------:|
| a    |     1 |

```python
def f():
    return "<b>"
```

---
The end.
"""
CALL = [
    {"reasoning_content": "I need the weather."},
    {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather"}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '{"city": '}}]},
    {"tool_calls": [{"index": 0, "function": {"arguments": '"Paris"}'}}]},
    {"tool_calls": [{"index": 1, "id": "call_2", "function": {"name": "time", "arguments": "{}"}}]},
]


def say(browser, text):
    browser.type("#text", text)
    browser.press_enter()


def reload(browser):
    browser.run("window.isOld = true")
    browser.call("Page.reload")
    browser.wait_for(
        "!window.isOld && document.readyState === 'complete' && document.getElementById('model').innerText"
    )


def press_escape(browser):
    for kind in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key="Escape", code="Escape", windowsVirtualKeyCode=27)


def messages(request):
    return [(message["role"], message["content"]) for message in request["messages"]]
