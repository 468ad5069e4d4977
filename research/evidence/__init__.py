"""Everything that the pages say of speed and quality, measured again by one command, and the pages written from it."""
