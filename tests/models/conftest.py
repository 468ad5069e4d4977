import pytest

from tests.checkpoints import checkpoint
from tests.checkpoints.llava_onevision import FOREIGN, PADDED, TIED, UNTIED


@pytest.fixture(scope="session")
def checkpoints():
    """Folders as the library saves them, by name."""
    kinds = {"tied": TIED, "untied": UNTIED, "padded": PADDED, "foreign": FOREIGN}
    return {name: checkpoint(kind) for name, kind in kinds.items()}
