"""The shipped table of predicted speeds is what the command computes."""

from research.recommended import table_text
from vidspec.models import recommended


def test_the_shipped_table_is_up_to_date(command, monkeypatch, tmp_path):
    shipped = recommended.TABLE.read_text(encoding="utf-8")
    assert table_text() == shipped
    monkeypatch.setattr("research.recommended.TABLE", tmp_path / "table.yaml")
    assert command("recommended", "--write").code == 0
    assert (tmp_path / "table.yaml").read_text(encoding="utf-8") == shipped
