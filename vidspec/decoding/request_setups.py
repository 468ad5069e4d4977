"""The parts that decode a request: those of its profile, or of the profile with the request's options."""

from __future__ import annotations

from vidspec.config import profiles
from vidspec.decoding.setup import PLAIN_DECODING, DecodingSetup
from vidspec.errors import ClosedError
from vidspec.models.request import CaptionRequest

#: Most setups kept for options of requests.
SETUPS = 64


class RequestSetups:
    """The setup of a profile and those of requests with options; all share its models, which :meth:`close` releases."""

    def __init__(self, base: DecodingSetup) -> None:
        self._base: DecodingSetup | None = base
        self._setups: dict[tuple[bool, str], DecodingSetup] = {}  # plain or not, by the options of requests

    @property
    def base(self) -> DecodingSetup:
        """The profile's setup.

        Raises:
            ClosedError: the captioner is closed.
        """
        if self._base is None:
            raise ClosedError
        return self._base

    def of(self, request: CaptionRequest) -> DecodingSetup:
        """Return the setup of a request.

        Raises:
            ClosedError: the captioner is closed.
            ProfileError: an option is unknown, or does not fit the profile.
        """
        setup = self._with_options(request)
        return setup.for_text if request.text_only else setup

    def close(self) -> DecodingSetup | None:
        """Return the profile's setup and refer to it no longer; None if that was done before."""
        base, self._base = self._base, None
        self._setups.clear()
        return base

    def _with_options(self, request: CaptionRequest) -> DecodingSetup:
        base = self.base
        if not (request.generate or request.plain):
            return base
        key = request.plain, repr(sorted(request.generate.items()))
        setup = self._setups.get(key)
        if setup is None:
            setup = base.under(profiles.override(base.profile, PLAIN_DECODING)) if request.plain else base
            setup = setup.with_generate(request.generate) if request.generate else setup
            if len(self._setups) >= SETUPS:
                self._setups.clear()
            self._setups[key] = setup
        return setup
