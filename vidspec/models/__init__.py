"""Model families behind one interface: loading, preprocessing, prompts. One module per family."""
