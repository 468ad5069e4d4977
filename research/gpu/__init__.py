"""Tests and measurements on a GPU, in parts that each end within minutes.

results    JSON lines, written as they come, and the time that is left
marked     the tests marked ``gpu``
sizes      passes, prompts and the vision tower of published sizes with random weights
rounds     rounds of drafts with random weights on the real loop, with forced acceptance, at published sizes
generation plain decoding by transformers at these sizes
kernels    single kernels at these sizes: products by format and rows, attention
frames     clips as decoded frames, for machines that decode no video
records    a folder at a published size, from decoded frames to records; training of a head there
folder     the built-in pairs over such clips: losslessness, one row against six, schedules, clips at once
"""
