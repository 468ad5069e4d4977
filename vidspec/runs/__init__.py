"""Runs over many clips: find, read, caption and record them, and resume after a crash. No torch, no terminal.

job                         Job: one clip or part, from its name to its result; JobConfig: settings of all jobs
inputs, manifests           command-line inputs -> unique Jobs
containers, stores          clips in tar and Parquet shards -> Jobs, and one at a time as a file; files behind URLs
shards                      selection of this machine's clips
records                     identity of a captioning; the record of a result
journal                     append-only file of records that survives a crash
outputs, sidecars, writers  destinations of records; formats: their text
parts, tables               one Parquet file per shard
bulk                        work left by an earlier run; results -> records, counts and events
feed, reader, read_worker   frames read ahead in processes that can be killed -> Jobs with frames
segments                    cutting a clip by length or by scenes
run                         Jobs through a captioner, several at a time, parts of a clip in order -> JobResult
local, replicas, ray_engine executors driven by bulk; pool: job distribution for the last two
merge, dry_run, log_file, trace_file, schema; timed: worker of ``vidspec bench throughput``
"""
