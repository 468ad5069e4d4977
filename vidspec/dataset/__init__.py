"""Many clips: finding, reading, captioning and keeping them, and going on after a crash. No torch, no terminal.

inputs, manifests           what was named on the command line -> Entry, each once
shards                      which of them are this machine's
identity, records           when two captionings are the same
journal                     the append-only file that survives a crash
outputs, sidecars, writers  where records go; formats: how they look
plan                        what an earlier run left to do -> Remaining, of Tasks
feed, reader, read_worker   the next clips' frames, read in processes that can be killed -> Work
segments                    a clip cut by length or by scenes
run                         Works through a captioner, several at a time -> Outcome
bulk                        outcomes -> records, counts and events
local, replicas, ray_engine the executors that bulk drives; pool: what the last two share
merge, dry_run, log_file, trace_file, schema
"""
