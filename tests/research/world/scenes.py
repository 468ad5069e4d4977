"""Scenes made by hand, of which everything is known."""

from research.world.scene import Scene, Thing

PLACES_AT = (0.2, 0.5, 0.8)


def thing(colour="red", shape="circle", size="large", motion="still", start=(1, 1), end=None, at=None, **more):
    at = (PLACES_AT[start[0]], PLACES_AT[start[1]]) if at is None else at
    return Thing(colour, shape, size, motion, start, start if end is None else end, at, **more)


def scene(*things, background="black", pattern="plain", seed=3):
    return Scene(tuple(things), background, pattern, seed)
