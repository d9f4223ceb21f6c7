"""Exceptions raised by Limner, and the suggestion of a similar name in their messages.

Messages state what was expected, what was found, where, and what to do; the command line prints them unchanged.
"""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module
from typing import Any

_RUST_REASON = re.compile(r"([A-Z][\w' ]+) \(os error \d+\)")
"""Reason of the operating system within the message of a library in Rust."""


class LimnerError(Exception):
    """Base class of all errors that a user can resolve."""


class SettingsError(LimnerError):
    """A recipe, a `key=value` assignment or an argument is unknown, of the wrong type or out of range."""


class CollectionError(LimnerError):
    """A collection, or a source file to import, is missing, damaged or inconsistent."""


class MediaError(LimnerError):
    """An image, audio or video file cannot be decoded, or is too large to be decoded safely."""


class ImageTooLargeError(MediaError):
    """An image has more pixels than are decoded."""


class BackboneError(LimnerError):
    """A pre-trained backbone cannot be loaded, or has no such layer."""


class FeatureError(LimnerError):
    """Features of an item are missing, or were computed by another backbone than the model was trained with."""


class RunError(LimnerError):
    """A trained model or a run directory is missing, incomplete or incompatible."""


class FolderError(LimnerError):
    """The index of a folder of images is missing, damaged, or was made with another model."""


class DamagedIndexError(FolderError):
    """A part of the index of a folder is missing, damaged, or older or newer than the other parts."""


class SearchIndexError(LimnerError):
    """The index of a collection is missing, damaged, or was made with another model or other features."""


class MetadataError(LimnerError):
    """Metadata of an image file, or its sidecar, cannot be read or written."""


class WriteError(RunError):
    """A file cannot be written, for example because the disk is full."""


class TrainingError(LimnerError):
    """Training cannot continue: the loss is not finite, a split is empty, or a run does not match its recipe."""


class ResourceError(LimnerError):
    """More memory or disk space is needed than there is."""


TRAIN_PACKAGES = frozenset(
    {"torch", "lightning_fabric", "transformers", "huggingface_hub", "scipy", "sacrebleu", "matplotlib"}
)
"""Packages of the extra `train`."""


class MissingExtraError(LimnerError):
    """An optional dependency is required and not installed."""

    def __init__(self, purpose: str, extra: str) -> None:
        super().__init__(
            f"{purpose} needs the optional extra '{extra}': pip install 'limner[{extra}]', "
            f"or from a checkout: pip install -c constraints.txt '.[{extra}]'"
        )


def extra_module(name: str, purpose: str, extra: str) -> Any:  # noqa: ANN401  (a module)
    """Import a module of an extra; MissingExtraError if it, or a library that it binds, is not installed."""
    try:
        return import_module(name)
    except (ImportError, OSError):  # OSError: soundfile is installed without the libsndfile library
        raise MissingExtraError(purpose, extra) from None


def missing_extra(error: ModuleNotFoundError, purpose: str) -> Exception:
    """Return the error that names the extra `train` for a purpose, or the error itself if another module is missing."""
    return MissingExtraError(purpose, "train") if str(error.name).partition(".")[0] in TRAIN_PACKAGES else error


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun in singular or plural: '1 item', '2,000 items'."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def shortened(text: str, length: int = 60) -> str:
    """Return a text for a message, truncated after `length` characters."""
    return text if len(text) <= length else f"{text[:length]}…"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return '; did you mean …?' with the known name that is most similar to a name, or an empty text.

    The case and the hyphens of options do not count.
    """
    by_lower = {known_name.lower().lstrip("-"): known_name for known_name in known}
    swapped = [other for other in by_lower if sorted(other) == sorted(name.lower())]  # the letters of a mistyped word
    similar = swapped[:1] or get_close_matches(name.lower().lstrip("-"), by_lower, 1)
    return f"; did you mean '{by_lower[similar[0]]}'?" if similar else ""


def system_reason(error: BaseException) -> str:
    """Return the reason why an operation failed, as the operating system says it where known."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = next(iter(str(error).splitlines()), "") or type(error).__name__
    match = _RUST_REASON.search(text)
    return match[1] if match else text
