import pytest


@pytest.fixture(scope="module")
def tokenizer():
    """Tokenizer of the pair with Qwen2.5-VL's layout."""
    from research.training.architecture import architecture

    return architecture("qwen2_5_vl").tokenizer()


@pytest.fixture(scope="module")
def words():
    """A tokenizer trained on few captions."""
    from research.training.architecture import build_tokenizer

    return build_tokenizer(samples=300)
