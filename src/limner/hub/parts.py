"""Tokenizers and preprocessing of the folders of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from limner.errors import BackboneError
from limner.features.encoders.transformers import without_output
from limner.features.spec import FeatureKind
from limner.media.image import ImageInput, open_image
from limner.media.modality import IMAGE


def load_part(folder: Path, kind: str, **options: Any) -> Any:  # noqa: ANN401
    """Load a tokenizer or a preprocessor of a folder; BackboneError if it is missing or damaged."""
    import transformers

    files: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        with without_output():
            return getattr(transformers, kind).from_pretrained(folder, **files, **options)
    except Exception as error:  # transformers raises almost any exception for damaged files
        reason = " ".join(str(error).split())[:300]
        raise BackboneError(
            f"{folder}: no usable {kind} ({reason}); restore its files, or install what is missing"
        ) from None


class HubPixels:
    """The preprocessing of images, as a backbone whose features are the pixels of the network."""

    modality, specs = IMAGE, ()

    def __init__(self, folder: Path) -> None:
        self._processor = load_part(folder, "AutoImageProcessor", backend="pil")

    def read(self, source: ImageInput) -> Any:  # noqa: ANN401
        """Open an image, and return the input of the network, (3, H, W); MediaError if it cannot be read."""
        return self._processor(images=open_image(source), return_tensors="np")["pixel_values"][0]

    def __call__(self, inputs: Any) -> dict[FeatureKind, Any]:  # noqa: ANN401
        """Return stacked results of `read`, (B, 3, H, W)."""
        return {"maps": inputs}
