"""Many clips: finding, reading, captioning and keeping them, and going on after a crash. No torch, no terminal.

inputs, manifests, globs    what was named on the command line -> Entry, each once
shards                      which of them are this machine's
identity, records           when two captionings are the same
journal                     the append-only file that survives a crash
outputs, sidecars, writers  where records go; formats: how they look
plan                        what an earlier run left to do -> Task
ahead, reader, read_worker  the next clips' frames, read in a process that can be killed -> Work
segments                    a clip cut by length or by scenes
run                         one Work after the other through a captioner -> Outcome
bulk                        outcomes -> records, counts and events
local, replicas, ray_engine the engines that bulk drives; pool: what the last two share
merge, compare, log_file, trace_file, schema
"""
