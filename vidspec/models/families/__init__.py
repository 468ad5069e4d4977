"""Model families, one per file, named after the ``model_type`` of its checkpoints."""
