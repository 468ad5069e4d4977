"""Output formats, one file each; ``base`` has their contract and registry."""
