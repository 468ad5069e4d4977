"""Profiles alongside other programs with the same weights: ``python -m research.peers`` and ``research.throughput``.

bench             profiles and peers in turns, clip by clip
generate          ``generate`` of transformers: plain, assisted, prompt lookup
outside           peers under other interpreters: openvino_worker, vllm_worker
throughput        folders at several batch sizes, each contender in its own process: profile_worker, generate_worker,
                  vllm_worker; recorded, steady, sampler: their captions, rates and memory
answering         both ends of a pipe to a worker process
"""
