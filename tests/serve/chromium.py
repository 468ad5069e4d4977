"""Chromium without a window, driven over a pipe by its DevTools protocol; needs no driver and no package."""

import base64
import json
import os
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

from tests.display.pages.browser import BROWSER

FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe")
#: Codes of keys that the tests press.
KEYS = {"Tab": 9, "Enter": 13, "ArrowRight": 39, "End": 35}


class Tab:
    """A page; ``trouble`` lists its errors, warnings and refused loads, and ``loads`` the addresses that it asked."""

    def __init__(self, reads: int, writes: int) -> None:
        self._reads, self._writes, self._number, self._rest = reads, writes, 0, b""
        self._session: dict[str, str] = {}
        self.trouble: list[str] = []
        self.loads: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network", "DOM"):
            self.send(f"{domain}.enable")

    def send(self, method, **params):
        """The result of a command."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params, **self._session}
        os.write(self._writes, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._rest:
                self._rest += os.read(self._reads, 1 << 20)
            line, _, self._rest = self._rest.partition(b"\0")
            answer = json.loads(line)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer.get("method"), answer.get("params", {}))

    def _note(self, method, params):
        if method == "Network.requestWillBeSent":
            self.loads.append(params["request"]["url"][:200])
        elif method == "Runtime.exceptionThrown":
            self.trouble.append(params["exceptionDetails"]["exception"].get("description", ""))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.trouble.append(params["entry"]["text"])

    def run(self, script):
        """The value of an expression, awaited."""
        found = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, script, seconds=30.0):
        """Wait for an expression to be true."""
        end = time.monotonic() + seconds
        while not self.run(script):
            assert time.monotonic() < end, f"{script}: {self.trouble}"
            time.sleep(0.02)

    def show(self, url, *, width=1100, dark=False):
        """Open an address."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.send("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def press(self, key, text=""):
        """Press a key."""
        key = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS.get(key, 0)}
        self.send("Input.dispatchKeyEvent", type="keyDown", text=text, **key)
        self.send("Input.dispatchKeyEvent", type="keyUp", **key)

    def drop(self, file, script):
        """Drop a file at the middle of the element that an expression names."""
        box = self.run(f"(box => [box.x + box.width / 2, box.y + box.height / 2])(({script}).getBoundingClientRect())")
        data = {"items": [], "files": [str(file)], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.send("Input.dispatchDragEvent", type=kind, x=box[0], y=box[1], data=data)

    def picture(self, file: Path) -> None:
        """Save a picture of the whole page, for people."""
        file.write_bytes(
            base64.b64decode(self.send("Page.captureScreenshot", captureBeyondViewport=True, format="png")["data"])
        )


@contextmanager
def open_tab(folder):
    """A tab of a new browser with its data in a folder."""
    reads, its_writes = os.pipe()
    its_reads, writes = os.pipe()
    words = [str(BROWSER), *FLAGS, f"--user-data-dir={folder}", "about:blank"]
    shell = f'exec "$@" 3<&{its_reads} 4>&{its_writes}'
    with subprocess.Popen(
        ["/bin/bash", "-c", shell, "bash", *words],
        pass_fds=(its_reads, its_writes),
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    ) as browser:
        os.close(its_reads), os.close(its_writes)
        try:
            yield Tab(reads, writes)
        finally:
            os.close(writes), os.close(reads)
            browser.kill()
