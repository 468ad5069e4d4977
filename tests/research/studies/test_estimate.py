"""The table of the estimate's errors."""

from research.studies.estimate import HEADER, Measured, lines


def test_differences_are_to_what_was_measured():
    found = [Measured(2.0, 2.0, 2.1), Measured(3.6, 3.0, 3.0), None]
    (row, empty) = lines([("fast", found), ("silent", [None])])
    assert len(row) == len(empty) == len(HEADER)
    assert row == ["fast", "2/3", "2.50x", "2.80x", "+10%", "+20%", "1/2", "+5%", "2/2"]
    assert empty[:3] == ["silent", "0/1", "-"]
