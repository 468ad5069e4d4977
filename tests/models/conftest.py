import pytest

from tests.models.checkpoints import FOREIGN, PADDED, TIED, UNTIED, save


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    """Folders as the library saves them, by name."""
    kinds = {"tied": TIED, "untied": UNTIED, "padded": PADDED, "foreign": FOREIGN}
    root = tmp_path_factory.mktemp("checkpoints")
    return {name: save(kind, root / name) for name, kind in kinds.items()}
