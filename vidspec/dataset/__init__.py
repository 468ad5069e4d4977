"""Many clips: finding, reading, captioning and keeping them, and going on after a crash. No torch, no terminal.

job                         Job: one clip or a part of it, from its name to its outcome; JobConfig: how all are done
inputs, manifests           what was named on the command line -> Jobs, each once
containers, stores          clips in tar and Parquet shards -> Jobs, and one at a time as a file; files behind URLs
shards                      which of them are this machine's
records                     when two captionings are the same; the record of an outcome
journal                     the append-only file that survives a crash
outputs, sidecars, writers  where records go; formats: how they look
parts, tables               a Parquet file for each shard
bulk                        what an earlier run left to do; outcomes -> records, counts and events
feed, reader, read_worker   the next clips' frames, read in processes that can be killed -> Jobs with frames
segments                    a clip cut by length or by scenes
run                         Jobs through a captioner, several at a time, the parts of each in order -> Outcome
local, replicas, ray_engine the executors that bulk drives; pool: how the last two give jobs to their processes
merge, dry_run, log_file, trace_file, schema; timed: the folder that ``vidspec bench throughput`` times
"""
