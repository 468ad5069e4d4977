"""A peer without a model, run by an interpreter of its own; ``FAKE_PEER`` says what is wrong with it."""

import json
import os
import time

from research.peers.answering import serve_functions
from vidspec.errors import ModelError

WRONG = os.environ.get("FAKE_PEER", "")
ODD = {
    "no tokens": {"token_ids": [], "first": 1e-6, "decode": 0.0},
    "no numbers": {"token_ids": ["A"], "first": 1e-6, "decode": 0.0},
    "unknown token": {"token_ids": [10**9], "first": 1e-6, "decode": 0.0},
    "no time": {"token_ids": [2], "first": 0.0, "decode": 0.0},
    "no number of seconds": {"token_ids": [2], "first": float("nan"), "decode": 0.0},
    "nothing": None,
    "another clock": {"token_ids": [2], "first": 1e-6, "decode": 1e6},
}


def main(about):
    asked = json.loads(about)

    def prepare():
        if WRONG == "dead":
            raise SystemExit("cannot open shared object file")
        if WRONG == "no pair":
            raise ModelError("llava_onevision | is not supported", hint="another pair")
        if WRONG == "silent":
            time.sleep(60)
        return {"facts": facts, "caption": caption}

    def facts():
        return {"fake": "1.0", "device": "cuda" if WRONG == "elsewhere" else "cpu", "threads": asked["threads"]}

    def caption(frames, **about):
        if WRONG == "dying":
            os._exit(7)
        if WRONG == "hanging":
            time.sleep(60)
        if WRONG in ODD:
            return ODD[WRONG]
        import numpy as np

        with open(os.environ["FAKE_ASKED"], "a", encoding="utf-8") as file:
            print(json.dumps({"frames": np.load(frames).tolist(), **about}), file=file)
        return {"token_ids": json.loads(os.environ["FAKE_TOKENS"]), "first": 1e-6, "decode": 1e-6}

    if WRONG == "babbling":
        print("loading", flush=True)
    serve_functions(prepare)
