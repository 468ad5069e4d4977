"""The page of a bench in a real browser: it complains of nothing, loads nothing, can be read and sorted."""

import pytest

from research.results.page import write_page
from tests.display.pages.browser import BROWSER, WHY, visit
from tests.display.pages.test_browser import CONTRAST
from tests.research.results.measured import MEASURED

pytestmark = [pytest.mark.full, pytest.mark.skipif(BROWSER is None, reason=WHY)]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    file = tmp_path_factory.mktemp("pages") / "bench.html"
    write_page(file, MEASURED, "r.json", {"cores": 2}, demo=True)
    return file


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_quiet_alone_and_readable(page, dark):
    seen = visit(page, CONTRAST, dark=dark)
    assert (seen.trouble, seen.loads, seen.log) == ([], [], "")
    assert seen.found["texts"] > 60 and seen.found["faint"] == []


def test_the_methods_of_a_bench_are_sorted_by_their_figures(page):
    script = """
    const table = document.querySelector("table");
    const names = () => [...table.tBodies[0].rows].map((row) => row.cells[0].textContent);
    const heads = [...table.tHead.rows[0].cells], head = (name) => heads.find((one) => one.textContent.trim() === name);
    const found = [names()];
    const tau = "accepted tokens per pass";
    for (const name of ["tokens/s", tau, tau]) { head(name).querySelector("button").click(); found.push(names()); }
    document.getElementById("search").value = "slow";
    document.getElementById("search").dispatchEvent(new Event("input"));
    return [...found, document.getElementById("count").textContent];
    """
    assert visit(page, script).found == [
        ["ar", "fast = quick", "slow"],
        ["slow", "ar", "fast = quick"],
        ["slow", "fast = quick", "ar"],
        ["fast = quick", "slow", "ar"],
        "1 of 3 rows",
    ]
