"""Chromium without a window: what a page has become when its script has run, and what it complained of."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from html import unescape
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
WHY = "needs Chromium (Debian: apt-get install chromium)"

#: Runs behind a page's own script and leaves what it finds in an attribute of the document. Errors of the page and
#: loads that its policy forbids are caught before its own script.
_BEFORE = """<script>
var trouble = [];
addEventListener("error", (event) => trouble.push("error: " + event.message), true);
addEventListener("securitypolicyviolation", (event) => trouble.push("load: " + event.blockedURI));
for (const name of ["error", "warn"]) console[name] = (...said) => trouble.push(name + ": " + said.join(" "));
</script>"""
_AFTER = """<script>
addEventListener("load", () => setTimeout(() => {
  const found = (() => { %s })();
  const every = performance.getEntriesByType("resource").map((one) => one.name);
  const loads = every.filter((name) => !name.startsWith("data:"));
  document.documentElement.dataset.found = JSON.stringify({ found, trouble, loads });
}, 50));
</script>"""


@dataclass(frozen=True)
class Seen:
    found: object
    trouble: list[str]
    loads: list[str]
    log: str


def visit(page: Path, script: str, *, dark: bool = False, width: int = 1280) -> Seen:
    """Return the value of ``script``, the body of a function, on ``page``."""
    assert BROWSER is not None
    text = page.read_text(encoding="utf-8")
    probed = page.with_name(f".probed-{page.name}")
    probed.write_text(text.replace("<style>", _BEFORE + "<style>", 1).removesuffix("</html>\n") + _AFTER % script)
    profile = page.with_name(f".profile-{page.stem}")
    flags = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--virtual-time-budget=3000",
        "--enable-logging=stderr",
        f"--user-data-dir={profile}",
        f"--window-size={width},1200",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}",
    ]
    command = [BROWSER, *flags, "--dump-dom", probed.as_uri()]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    probed.unlink()
    shutil.rmtree(profile, ignore_errors=True)
    left = re.search(r'data-found="([^"]*)"', ran.stdout)
    assert left is not None, ran.stderr[-2000:]
    log = "\n".join(line for line in ran.stderr.splitlines() if "CONSOLE" in line)
    return Seen(**json.loads(unescape(left[1])), log=log)
