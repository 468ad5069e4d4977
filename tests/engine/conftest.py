import pytest


@pytest.fixture(scope="module")
def engine():
    """A small LLaVA-OneVision."""
    from tests.checkpoints.llava_onevision import TIED, adapter
    from vidspec.engine.forward import Engine

    return Engine(adapter(TIED))


@pytest.fixture(scope="module")
def prefix(engine):
    """A prompt with two frames of noise."""
    from tests.checkpoints.llava_onevision import pixels

    return engine.model.prefix(engine.model.encode(pixels(2)), "Describe the video.")
