"""mBART-50 (Tang et al., 2020): translators of 52 languages, whose tokens are `en_XX` or `de_DE`."""

from __future__ import annotations

from pathlib import Path

from limner.errors import RunError
from limner.hub.families.unprompted import TextTranslator
from limner.hub.networks import DEFAULTS
from limner.hub.settings import HubSettings


class MBart50(TextTranslator):
    """A translator whose decoder reads the end of a sentence, and then the token of the target language.

    The first mBART (Liu et al., 2020), of the same `model_type`, reads the language in place of the end.
    """

    model_types, names_language = ("mbart",), True

    def __init__(self, folder: Path, device: str = "cpu", settings: HubSettings = DEFAULTS) -> None:
        """Load a folder; RunError for an mBART that is no mBART-50."""
        super().__init__(folder, device, settings)
        start, end = self.ends
        if start != end:
            raise RunError(f"{folder}: decoder_start_token_id is {start}, expected {end}; choose an mBART-50")
