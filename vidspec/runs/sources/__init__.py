"""Sources of clips, one file each; ``base`` has their contract and registry."""
