"""Headless Chromium over a DevTools pipe: opens pages, runs scripts and records errors."""

import base64
import fcntl
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import time

PROGRAM = shutil.which("chromium")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
)
# Chromium reads commands from descriptor 3 and writes to 4.
WRAPPER = (
    "import os, sys; one, two, *command = sys.argv[1:]; os.dup2(int(one), 3); os.dup2(int(two), 4); "
    "os.execv(command[0], command)"
)
PATIENCE_S = 60.0


class Browser:
    """`errors` are uncaught exceptions, console errors and refusals of the content security policy."""

    def __init__(self, profile):
        self._reads, theirs_out = os.pipe()
        theirs_in, self._writes = os.pipe()
        inherited = [fcntl.fcntl(pipe, fcntl.F_DUPFD, 10) for pipe in (theirs_in, theirs_out)]
        command = [PROGRAM, *FLAGS, f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", WRAPPER, *map(str, inherited), *command],
            pass_fds=inherited,
            stderr=subprocess.DEVNULL,
        )
        for pipe in (theirs_in, theirs_out, *inherited):
            os.close(pipe)
        self._numbers = itertools.count(1)
        self._rest = b""
        self._session = None
        self.errors = []
        self.requests = []  # URLs that the page asked for

    def open(self, url, *, width=1200, height=900, is_dark=False):
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Runtime", "Log", "Page", "Network"):
            self.call(f"{domain}.enable")
        self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=url)
        self.wait_for("location.href !== 'about:blank' && document.readyState === 'complete'")

    def resize(self, width, height):
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    def run(self, script):
        """Returns the value of a JavaScript expression; promises are awaited."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, script):
        deadline = time.monotonic() + PATIENCE_S
        while (value := self.run(script)) in (None, False, 0, ""):  # an element is {}
            assert time.monotonic() < deadline, f"never true: {script}; errors: {self.errors}"
            time.sleep(0.05)
        return value

    def type(self, selector, text):
        """Types as a user does, so that the page receives every event."""
        self.run(f"document.querySelector({json.dumps(selector)}).focus()")
        self.call("Input.insertText", text=text)

    def press_enter(self):
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", text="\r", windowsVirtualKeyCode=13
            )

    def click(self, selector):
        place = self.run(
            f"(() => {{ const box = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
            " return {x: box.x + box.width / 2, y: box.y + box.height / 2}; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)

    def screenshot(self, path):
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def call(self, method, **params):
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session is not None and not method.startswith(("Target.", "Browser.")):
            message["sessionId"] = self._session
        os.write(self._writes, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != number:
            self._note(answer)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def _read(self):
        while b"\0" not in self._rest:
            assert select.select([self._reads], [], [], PATIENCE_S)[0], "Chromium says nothing"
            more = os.read(self._reads, 1 << 20)
            assert more, "Chromium is gone"
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def _note(self, event):
        params = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(params["exceptionDetails"])
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.errors.append(params["args"])
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.errors.append(params["entry"])
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])

    def close(self):
        os.close(self._writes)
        os.close(self._reads)
        self._process.terminate()
        self._process.wait(PATIENCE_S)
