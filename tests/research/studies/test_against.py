"""Two checkouts side by side: rates are medians, and other tokens are noticed."""

from pathlib import Path

import pytest

from research.studies import against


def turn(seconds, *ids):
    return {"tokens": 100, "seconds": seconds, "ids": [list(ids)]}


def test_rates_are_medians_and_other_tokens_are_noticed():
    text = against.compared(
        {
            "ar": ([turn(2, 1), turn(1, 1), turn(9, 1)], [turn(1, 1), turn(1, 1), turn(5, 1)]),
            "std": ([turn(1, 1)], [turn(1, 2)]),
        }
    )
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    assert ["ar", "50.0", "100.0", "2.000", "yes"] in rows and ["std", "100.0", "100.0", "1.000", "no"] in rows


@pytest.mark.full
def test_a_checkout_beside_itself_has_the_same_tokens(capsys):
    root = Path(against.__file__).parents[2]
    assert against.main([str(root), "--profiles", "ar,vanilla-sd", "--repeats", "1", "--frames", "2"]) == 0
    assert capsys.readouterr().out.count("| yes |") == 2
