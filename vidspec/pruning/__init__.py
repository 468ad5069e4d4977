"""What the draft sees of the video: one pruner per file. The target always sees everything."""
