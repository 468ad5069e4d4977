"""Options of requests with profiles of several kinds: each answer is that of a captioner with these options alone."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.serve.servers import asked, data_url, serving
from vidspec.captioner import Captioner
from vidspec.config import profiles
from vidspec.embedded.samples import shipped

CLIPS = shipped()
FIELDS = [
    {},
    {"max_tokens": 7},
    {"temperature": 1.0, "top_p": 0.9, "seed": 3},
    {"stop": [" circle"]},
    {"repetition_penalty": 1.3, "presence_penalty": 0.4},
]
KEYS = {"max_tokens": "max_new_tokens"}


def expected(captioner, number, fields):
    own = {f"generate.{KEYS.get(name, name)}": value for name, value in fields.items()}
    changed = profiles.override(captioner.client.profile, own)
    draft = captioner.client.setup.draft.model if captioner.client.setup.draft is not None else None
    alone = Captioner(changed, captioner.client.setup.target.model, draft, slot=captioner.client.setup.slot)
    return alone.caption(CLIPS[number % len(CLIPS)]).caption


@pytest.mark.sample(full=2)
@pytest.mark.full
@pytest.mark.parametrize("name", ["ar", "ngram", "sd-tree", "sd-adaptive-tree", "sd-attention", "parallelvlm"])
def test_options_of_requests_beside_each_other(name):
    overrides = {"video.frames": 4, "generate.max_new_tokens": 20, "models.device": "cpu"}
    with Captioner.from_profile(name, overrides=overrides) as captioner:
        texts = [expected(captioner, number, fields) for number, fields in enumerate(FIELDS)]
        with serving(captioner, batch=4) as (url, _), ThreadPoolExecutor(len(FIELDS)) as pool:

            def ask(number):
                body = asked(data_url(CLIPS[number % len(CLIPS)]), **FIELDS[number])
                return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120).json()

            answers = list(pool.map(ask, range(len(FIELDS))))
    assert [answer["choices"][0]["message"]["content"] for answer in answers] == texts
