import pytest
import transformers

from tests.checkpoints import checkpoint, copy_checkpoint
from tests.checkpoints.llava_onevision import FOREIGN, PADDED, TIED, UNTIED


@pytest.fixture(scope="session")
def checkpoints():
    """Folders as the library saves them, by name."""
    kinds = {"tied": TIED, "untied": UNTIED, "padded": PADDED, "foreign": FOREIGN}
    return {name: checkpoint(kind) for name, kind in kinds.items()}


@pytest.fixture
def copy(tmp_path):
    """A checkpoint of one's own to damage."""
    return copy_checkpoint(tmp_path / "model", TIED)


@pytest.fixture
def library_verbosity():
    """Loading silences transformers; leave it as it was."""
    before = transformers.utils.logging.get_verbosity()
    yield
    transformers.utils.logging.set_verbosity(before)
    transformers.utils.logging.enable_progress_bar()
