"""Methods that prune the target, one per file, named after it."""
