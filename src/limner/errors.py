"""Everything Limner refuses, in one tree.

A message names the thing, its value, what was expected and the remedy; the command line prints it as it is.
"""


class LimnerError(Exception):
    """Something the user can mend; every error below is one."""


class SettingsError(LimnerError):
    """A recipe, a `key=value` or an argument that is misspelt, of the wrong type or out of range."""


class CollectionError(LimnerError):
    """A collection, or a source file that should become one, is missing, damaged or inconsistent."""


class MediaError(LimnerError):
    """A picture or clip cannot be decoded, or is too large to be decoded safely."""


class BackboneError(LimnerError):
    """A pre-trained vision network cannot be loaded or has no such layer."""


class FeatureError(LimnerError):
    """Features are missing for an item, or were made by another backbone than the model was trained on."""


class RunError(LimnerError):
    """A saved model or run is missing, incomplete or does not fit what it is asked to join."""


class TrainingError(LimnerError):
    """Training cannot go on: a loss that is not finite, an empty split, a run that does not match its recipe."""


class MissingExtraError(LimnerError):
    """An optional dependency is needed and not installed."""

    def __init__(self, need: str, extra: str) -> None:
        super().__init__(
            f"{need} needs the optional extra '{extra}': pip install 'limner[{extra}]', "
            f"or from a checkout: pip install -c constraints.txt '.[{extra}]'"
        )
