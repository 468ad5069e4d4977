"""Draw the pictures of docs/use/how-it-works.md and docs/use/reports.md from real runs: ``research.pages.how [OUT]``.

Needs Chromium. Two clips are captioned by the built-in Qwen pair, a drawn one, which it can describe, and real video,
which it cannot. The pictures are parts of the page that ``caption --report`` writes.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image, ImageChops

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PICTURES = DOCS / "pictures"
DRAWN = ROOT / "vidspec" / "embedded" / "clips" / "three-objects.mp4"
REAL = DOCS / "clips" / "grand-prix-1906.mp4"
#: Keeps one part of a page: a heading and its content.
ALONE = """<script>addEventListener("load", () => {
  const title = [...document.querySelectorAll("h2")].find((one) => one.textContent.trim().startsWith("%s"));
  const kept = [title];
  for (let one = title.nextElementSibling; one && one.tagName !== "H2"; one = one.nextElementSibling) kept.push(one);
  document.body.replaceChildren(...kept);
  document.body.style.margin = "1em";
});</script>"""


def captioned(clip: Path, folder: Path) -> Path:
    """Caption a clip and return its report."""
    page = folder / f"{clip.stem}.html"
    command = [sys.executable, "-m", "vidspec", "caption", clip.relative_to(ROOT), "--pair", "embedded-qwen"]
    command += ["--frames", "16", "--profile", "sd-attention-chain", "--baseline", "--report", page]
    subprocess.run(list(map(str, command)), check=True, cwd=ROOT)
    return page


def part(page: Path, title: str, out: Path, height: int | None = None) -> None:
    """Draw one part of a page, or all of it if ``title`` is empty, down to ``height`` pixels."""
    alone = page.with_name("part.html")
    alone.write_text(page.read_text(encoding="utf-8") + (ALONE % title if title else ""), encoding="utf-8")
    shot = page.with_name("part.png")
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        raise SystemExit("needs Chromium (Debian: apt-get install chromium)")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1000,2400"]
    subprocess.run([browser, *options, f"--screenshot={shot}", alone.as_uri()], check=True, capture_output=True)
    with Image.open(shot) as image:
        whole = image.convert("RGB")
    found = ImageChops.difference(whole, Image.new("RGB", whole.size, whole.getpixel((0, 0)))).getbbox()
    if found is None:
        raise SystemExit(f"{page}: has no part {title}")
    cut = whole.crop((0, 0, 1000, min(found[3] + 12, height or 2400)))
    cut.quantize(256, Image.Quantize.MAXCOVERAGE).save(out, optimize=True)


def main() -> None:
    """Draw all of them."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURES
    with tempfile.TemporaryDirectory() as name:
        drawn, real = captioned(DRAWN, Path(name)), captioned(REAL, Path(name))
        part(drawn, "Frames and visual tokens", out / "how-seen.png")
        part(real, "Frames and visual tokens", out / "how-seen-real.png")
        part(real, "", out / "report-real.png", 850)
        part(drawn, "Caption", out / "how-caption.png")
        part(drawn, "Timeline", out / "how-timeline.png", 262)


if __name__ == "__main__":
    main()
