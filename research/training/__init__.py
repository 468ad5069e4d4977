"""How the built-in models are trained, a stage to a module; not part of what is installed."""
