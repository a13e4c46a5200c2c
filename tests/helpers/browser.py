"""A headless Chromium, driven over its DevTools protocol."""

import json
import shutil
import subprocess
import time

import websocket

from tools.testbed.processes import wait_for

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Chromium:
    """One browser for many pages: to start one takes longer than most pages do."""

    def __init__(self, folder):
        self.all = None  # the connection to the browser itself; each page has one of its own
        self.process = subprocess.Popen(
            [
                *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
                *("--remote-debugging-port=0", "--remote-allow-origins=*", f"--user-data-dir={folder}"),
                # Else it drops changes of the address that come too quickly: 100 diffs in five seconds did.
                *("--disable-ipc-flooding-protection", "about:blank"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            file = folder / "DevToolsActivePort"
            wait_for(lambda: (file.exists() and "/devtools/" in file.read_text()) or self.has_ended(), 30)
            self.check()
            port, path = file.read_text().splitlines()
            self.address = f"ws://127.0.0.1:{port}"
            self.all = Connection(self.address + path)
        except BaseException:
            self.close()
            raise

    def has_ended(self):
        return self.process.poll() is not None

    def check(self):
        assert not self.has_ended(), f"Chromium ended with {self.process.returncode}"

    def close(self):
        if self.all:
            self.all.socket.close()
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Connection:
    def __init__(self, address):
        self.number, self.socket = 0, websocket.create_connection(address, timeout=60)
        self.events = []  # what the browser said unasked, of the domains that were enabled

    def call(self, method, **parameters):
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self.socket.recv())
            if "method" in answer:
                self.events.append(answer)
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return answer["result"]


class Page(Connection):
    """A page that shares nothing with the others of its browser: no storage, no cache."""

    def __init__(self, chromium, url, width=1400, height=1000):
        chromium.check()
        self.chromium = chromium
        self.context = chromium.all.call("Target.createBrowserContext")["browserContextId"]
        where = {"browserContextId": self.context, "url": "about:blank"}
        target = chromium.all.call("Target.createTarget", **where)["targetId"]
        super().__init__(f"{chromium.address}/devtools/page/{target}")
        self.resize(width, height)
        self.call("Page.navigate", url=url)

    def resize(self, width, height):
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def wait(self, condition, what, seconds=60):
        deadline = time.monotonic() + seconds
        while not (result := condition()):
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {seconds} seconds for {what}")
            time.sleep(0.2)
        return result

    def ask(self, expression):
        """The value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def until(self, expression, what, seconds=60):
        return self.wait(lambda: self.ask(expression), what, seconds)

    def click(self, selector, text):
        """Press the mouse on the visible element that shows this text, as a person would."""
        find = f"""(() => {{
            const found = [...document.querySelectorAll({json.dumps(selector)})].find(
                (element) => element.textContent.trim() === {json.dumps(text)} && element.offsetParent);
            if (!found) return null;
            const box = found.getBoundingClientRect();
            return [box.x + box.width / 2, box.y + box.height / 2];
        }})()"""
        x, y = self.until(find, f"{text!r} to press on")
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def close(self):
        self.socket.close()
        self.chromium.all.call("Target.disposeBrowserContext", browserContextId=self.context)
