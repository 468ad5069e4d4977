"""Statistics of a finished bench: places, differences from noise, the speed model; LaTeX."""
