"""docs/use/own-models.md says of each family what small models of it do."""

import re
from pathlib import Path

import pytest

from tests.checkpoints.mtp import FAMILY as HYBRID
from tests.checkpoints.qwen import QWEN3, QWEN25
from tests.model_pairs import ADAPTERS
from tests.tiers import full_but
from vidspec.baselines.engine import check_blocks
from vidspec.errors import ProfileError
from vidspec.models.base import families
from vidspec.models.identity import is_related

PAGE = Path(__file__).parents[2] / "docs" / "use" / "own-models.md"
TEXT = PAGE.read_text(encoding="utf-8")
COLUMNS = "| family | blocks | drafts | profiles |"


def rows():
    """Families of each row, and the texts of its other cells."""
    text = TEXT.split(COLUMNS)[1].split("\n\n")[0]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]
    return [(re.findall("`([^`]+)`", names), *cells) for names, *cells in lines]


SOUND = re.findall("`([^`]+)`", TEXT.split("- [Sound](#caption-with-sound): ")[1].split("\n")[0])
ROWS = {family: (names, *cells) for names, *cells in rows() for family in names}


def test_every_family_has_a_row():
    assert sorted(ROWS) == sorted(families.names()) == sorted(name for names, *_ in rows() for name in names)


@pytest.mark.parametrize("family", sorted(ROWS))
def test_drafts(family):
    names, _, drafts, _ = ROWS[family]
    others = {other for other in families.names() if is_related(family, other) and other != family}
    named = {*names, *re.findall("`([^`]+)`", drafts)} - {family}
    assert others == (set() if drafts == "same family" else named)


@pytest.mark.parametrize("family", full_but(["minicpmv4_6"], sorted(ROWS)))
def test_what_a_model_does(family):
    _, blocks, _, profiles = ROWS[family]
    model = ADAPTERS[family]()
    assert blocks.split()[0] == model.decoder.name
    assert (family in SOUND) is (model.max_sound_s is not None)
    assert (profiles == "chains") is (model.decoder.cached is not None)
    refused = False
    try:
        check_blocks(model)
    except ProfileError:
        refused = True
    assert refused is (profiles == "no lossy pruning")


def test_heads():
    """Those that ``tests/drafting`` runs."""
    assert f"EAGLE-3 and DFlash with `{QWEN25}` and `{QWEN3}`, MTP with `{HYBRID}`." in TEXT
