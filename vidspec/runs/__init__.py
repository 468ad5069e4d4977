"""Runs over many clips: find, read, caption and record them, and resume after a crash. No torch, no terminal.

job                         Job: one clip or part, from its name to its record, and what is asked about it
inputs, sources             command-line inputs -> unique Jobs; clips of each kind of input -> Jobs, each as a file
stores                      files behind URLs
shards                      selection of this machine's clips
planning, destinations      RunSpec -> RunPlan: clips, profile and renderers; run_settings: checks of a spec
remaining                   work left by an earlier run; results -> records, counts and events
running, reporter           a plan carried out; what a run says beside its results
records                     identity of a captioning; the record of a result
run_captions, run_store     what is known of a run's captions, with its journals; that and any number of renderers
journal, journal_lines      append-only file of records that survives a crash; known_journals: whose a file is
renderers                   base of run_file, clip_files (sidecars: their names), part_files, and streams in writers
formats                     text of records; cues, rendering, schema: what several of them need
feed, reader, read_worker   frames read ahead in processes that can be killed -> Jobs with frames
segments                    cutting a clip by length or by scenes
run                         Jobs through a captioner, several at a time, parts of a clip in order -> Jobs with results
executors                   local (this process), replicas, ray; base: protocol, distribution of jobs; devices of each
merge, trace_file, ties
"""
