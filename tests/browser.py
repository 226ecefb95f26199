"""A real browser for tests.

Chromium is driven through chromedriver's own protocol, which is JSON over HTTP: nothing needs to be
installed beside the two programs.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PHONE = 360
CLICKS = 5  # attempts to click on an element
FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
]


class Browser:
    """A session of chromedriver."""

    def __init__(self, address: str, profile: Path) -> None:
        options = {"args": [*FLAGS, f"--user-data-dir={profile}"]}
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        self._session = f"{address}/session"
        answer = self._call("", {"capabilities": {"alwaysMatch": wanted}})
        self._session += f"/{answer['sessionId']}"

    def open(self, path: Path | str, width: int = 1000, height: int = 900) -> None:
        """Open a file or an address."""
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width <= PHONE}
        self.devtools("Emulation.setDeviceMetricsOverride", **screen)
        self._call("/url", {"url": path if isinstance(path, str) else path.as_uri()})

    def run(self, script: str) -> Any:
        """The value that a script returns."""
        return self._call("/execute/sync", {"script": script, "args": []})

    def wait(self, expression: str, seconds: float = 120.0) -> Any:
        """Wait until an expression has a value that counts as true, and return it."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = self.value(expression)
            if found:
                return found
            time.sleep(0.05)
        raise TimeoutError(f"{expression} did not become true; the page has: {self.text()[:2000]}")

    def text(self) -> str:
        return str(self.value("document.body.innerText"))

    def press(self, *keys: str) -> None:
        """Type keys where the focus is."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._call("/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def click(self, selector: str) -> None:
        """Click on an element, as a user does."""
        for attempt in reversed(range(CLICKS)):
            try:
                found = self._call("/element", {"using": "css selector", "value": selector})
                self._call(f"/element/{next(iter(found.values()))}/click", {})
                return
            except urllib.error.HTTPError as error:  # noqa: PERF203, drawn again between the calls
                if error.code != 404 or not attempt:
                    raise

    def new_tab(self) -> str:
        """Open another tab, go to it, and return the one before."""
        before = str(self._call("/window", None, "GET"))
        opened = self._call("/window/new", {"type": "tab"})
        self.go_to(str(opened["handle"]))
        return before

    def go_to(self, tab: str) -> None:
        self._call("/window", {"handle": tab})

    def devtools(self, command: str, **parameters: Any) -> Any:
        return self._call("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def dark(self, on: bool) -> None:
        feature = {"name": "prefers-color-scheme", "value": "dark" if on else "light"}
        self.devtools("Emulation.setEmulatedMedia", media="", features=[feature])

    def value(self, expression: str) -> Any:
        return self._call("/execute/sync", {"script": f"return {expression}", "args": []})

    def log(self, kind: str) -> list[dict[str, Any]]:
        """What happened since the last call: "browser" for the console, "performance" for the rest."""
        return list(self._call("/se/log", {"type": kind}))

    def requests(self) -> list[str]:
        """The addresses requested since the last call."""
        events = [json.loads(entry["message"])["message"] for entry in self.log("performance")]
        sent = [e["params"] for e in events if e["method"] == "Network.requestWillBeSent"]
        return [parameters["request"]["url"] for parameters in sent]

    def picture(self, path: Path) -> None:
        """A screenshot of the whole page."""
        data = self.devtools("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(data))

    def paper(self, path: Path) -> None:
        data = self.devtools("Page.printToPDF", preferCSSPageSize=True, printBackground=False)["data"]
        path.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        self._call("", None, "DELETE")

    def _call(self, path: str, body: Any, method: str = "POST") -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._session + path, data, headers, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=60) as answer:
            return json.load(answer)["value"]


def started(profile: Path) -> Iterator[Browser]:
    """A browser that is closed at the end; the test is skipped where there is none."""
    driver, chromium = shutil.which("chromedriver"), shutil.which("chromium")
    if driver is None or chromium is None:
        pytest.skip("needs Chromium and its driver (Debian's packages chromium and chromium-driver)")
    process = subprocess.Popen([driver, "--port=0"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        port = next(
            found[1] for line in lines if (found := re.search(r"successfully on port (\d+)", line))
        )
        session = Browser(f"http://127.0.0.1:{port}", profile)
        try:
            yield session
        finally:
            session.close()
    finally:
        process.terminate()
        process.wait(10)
        assert process.stdout is not None
        process.stdout.close()
