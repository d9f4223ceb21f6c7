"""Learning of convolutional filters by spherical k-means, without a pre-trained network.

Kiros et al. (2014), section 5, after Coates and Ng (2011): patches of training images are contrast-normalised and
whitened, and spherical k-means learns a dictionary of filters. `encoders.kmeans` encodes images with it.

Choices that the papers leave open: a patch is assigned to the centroid with the largest signed product, because the
activations are one-sided: an edge and its opposite get separate filters. Centroids are updated after each mini-batch
instead of each pass.

Shapes: D is the size of a patch, 3 * patch * patch (channel-major, then row-major); K is the number of filters.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from PIL import Image
from pydantic import model_validator
from torch import Tensor
from torch.nn import functional as F

from limner.bounds import Epochs, GridSide, PatchSide, Seed, Several, Threshold, Width
from limner.errors import BackboneError, CollectionError, MediaError
from limner.features.preprocessing import Preprocessing, preprocess, raw_pixels
from limner.media.image import ImageInput, Pixels, describe_input, open_image
from limner.process import require_memory
from limner.progress import Progress
from limner.settings import Settings
from limner.storage.tensors import read_tensors, save_tensors

if TYPE_CHECKING:
    from limner.data.collection import Collection

logger = logging.getLogger(__name__)

CONTRAST_FLOOR = 10.0
"""Added to the variance of a patch (values 0..255) to avoid amplifying noise in flat areas; Coates and Ng (2011)."""
WHITENING_FLOOR = 0.1
"""Added to the eigenvalues of the covariance of normalised patches; Coates and Ng (2011)."""
BATCH_PATCHES = 10_000
"""Patches per mini-batch."""
_FACTS_KEY = "kmeans"


class KMeansSettings(Settings):
    """Settings of the dictionary; the defaults are the published values where the papers give them."""

    size: PatchSide = 64
    """Side to which images are resized, ignoring the aspect ratio, in pixels."""
    patch: PatchSide = 6
    """Side r of a patch, in pixels."""
    filters: Width = 128
    """Number k_f of centroids, and of maps; at least 4, as models take maps of three channels for pixels."""
    grid: GridSide = 9
    """Side G to which each map is max-pooled, in locations."""
    patches: Several = 200_000
    """Number of training patches, spread evenly over the images; each needs 3 * patch * patch bytes of memory."""
    passes: Epochs = 10
    """Number of passes of k-means over the patches."""
    seed: Seed = 1
    """Seed of the drawn patches and initial centroids."""
    activation: Literal["triangle", "soft-threshold"] = "triangle"
    """Activation of the filters: 'triangle', max(0, mean(z) - z_k) with the distances z to the centroids (Coates, Lee
    and Ng, 2011), or 'soft-threshold', max(0, D_k x - alpha) (Coates and Ng, 2011)."""
    alpha: Threshold = 0.25
    """Threshold alpha of the activation 'soft-threshold'."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.activation == "triangle" and "alpha" in self.model_fields_set:
            raise ValueError(f"alpha {self.alpha:g} has no effect on the triangle activation; leave it out")
        if self.filters < 4:
            raise ValueError(
                f"expected at least 4 filters, got {self.filters}: models take maps of three channels for pixels"
            )
        if self.patch > self.size:
            raise ValueError(f"expected a patch no larger than the image, got patch {self.patch} and size {self.size}")
        if self.grid > self.positions:
            raise ValueError(
                f"expected a grid no larger than the maps, got grid {self.grid} for maps of side {self.positions} "
                f"(size {self.size} - patch {self.patch} + 1); use a smaller grid or a larger size"
            )
        return self

    @property
    def activation_name(self) -> str | None:
        """Name of the activation in specifications of features; None for the triangle activation, the default."""
        return None if self.activation == "triangle" else f"{self.activation}({self.alpha:g})"

    @property
    def positions(self) -> int:
        """Number of patch positions along one side of an image."""
        return self.size - self.patch + 1

    @property
    def preprocessing(self) -> Preprocessing:
        """Preprocessing of images."""
        return raw_pixels(self.size)


class Filters(NamedTuple):
    """A learned dictionary. A whitened patch is (normalised - mean) @ whitening."""

    settings: KMeansSettings
    """Settings of the dictionary."""
    mean: Tensor
    """Mean of normalised patches, (D,)."""
    whitening: Tensor
    """Symmetric whitening matrix, (D, D)."""
    centroids: Tensor
    """Centroids of whitened patches, of length 1, (K, D)."""


def learn_filters(
    collection: Collection, settings: KMeansSettings, *, split: str = "train", on_progress: Progress | None = None
) -> Filters:
    """Learn a dictionary: patches, contrast normalisation, ZCA whitening, spherical k-means.

    The result is a function of the settings and the images. Memory holds the patches as bytes and one mini-batch of
    them as floats.

    Args:
        collection: collection of the images; items without an image, and images that cannot be read, are skipped.
        settings: settings of the dictionary.
        split: split to learn from.
        on_progress: called with the number of images and mini-batches done and their total.

    Raises:
        CollectionError: the split does not exist, or has fewer patches than filters.
    """
    paths = [collection.image_path(item) for item in collection.items(split) if item.image is not None]
    if not paths:
        raise CollectionError(f"{collection.path}: split '{split}' has no images to learn filters from; choose another")
    _require_memory(settings, len(paths))
    random = np.random.default_rng(settings.seed)
    batches = -(-settings.patches // BATCH_PATCHES)
    total = len(paths) + settings.passes * batches
    done = 0

    def advance(steps: int = 1) -> None:
        nonlocal done
        done = min(done + steps, total)
        if on_progress is not None:
            on_progress(done, total)

    patches = _sample_patches(paths, settings, random, advance)
    if len(patches) < settings.filters:
        raise CollectionError(
            f"{collection.path}: expected at least {settings.filters} patches with some contrast (one per filter), got "
            f"{len(patches)} in the images of split '{split}'; add images or use fewer filters"
        )
    mean, whitening = fit_whitening(_batches(patches))
    centroids = spherical_kmeans(patches, mean, whitening, settings, random, advance)
    advance(total)
    return Filters(settings, mean, whitening, centroids)


def _require_memory(settings: KMeansSettings, images: int) -> None:
    """Check that the patches, and the products of their values for the whitening, fit into memory."""
    values = 3 * settings.patch**2
    patches = min(settings.patches, images * settings.positions**2) * values
    products = 2 * 4 * values**2
    remedy = "patches (--patches)" if patches > products else "the side of a patch (--patch)"
    require_memory(patches + products, "k-means of image patches", f"lower {remedy}")


def _sample_patches(
    paths: Sequence[Path], settings: KMeansSettings, random: np.random.Generator, advance: Callable[[], None]
) -> Pixels:
    """Sample patches, equally many from each image, (N, D); patches of a single grey value are dropped."""
    order = random.permutation(len(paths))
    counts = np.full(len(paths), settings.patches // len(paths))
    counts[: settings.patches % len(paths)] += 1
    # One generator per image: the result does not depend on the order of decoding or on unreadable images.
    seeds = random.integers(2**63, size=len(paths))

    def sample(number: int) -> Pixels | MediaError:
        try:
            image = read_pixels(paths[order[number]], settings)[0]
        except MediaError as error:
            return error
        windows = sliding_window_view(image, (settings.patch, settings.patch), axis=(0, 1))  # (n, n, 3, r, r)
        places = settings.positions**2
        drawn = np.random.default_rng(seeds[number]).choice(places, min(counts[number], places), replace=False)
        patches = windows[np.divmod(drawn, settings.positions)].reshape(len(drawn), -1)
        varied: Pixels = patches[patches.min(1) < patches.max(1)]
        return varied

    sampled: list[Pixels] = []
    skipped: list[MediaError] = []
    pool = ThreadPoolExecutor(os.cpu_count())
    try:
        for patches in pool.map(sample, range(np.count_nonzero(counts))):
            if isinstance(patches, MediaError):
                skipped.append(patches)
            else:
                sampled.append(patches)
            advance()
    finally:
        pool.shutdown(cancel_futures=True)
    if skipped:
        logger.warning("%d images were skipped; the first: %s", len(skipped), skipped[0])
    return np.concatenate(sampled) if sampled else np.empty((0, 3 * settings.patch**2), np.uint8)


def normalise(patches: Tensor) -> Tensor:
    """Normalise the contrast of patches (N, D) with values 0..255: (p - mean) / sqrt(variance + 10)."""
    centred = patches - patches.mean(1, keepdim=True)
    return centred / (centred.square().mean(1, keepdim=True) + CONTRAST_FLOOR).sqrt()


def _batches(patches: Pixels) -> Iterator[Tensor]:
    """Yield mini-batches of normalised patches."""
    for start in range(0, len(patches), BATCH_PATCHES):
        yield normalise(torch.from_numpy(patches[start : start + BATCH_PATCHES]).float())


def fit_whitening(batches: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Fit ZCA whitening, V (Lambda + 0.1)^(-1/2) V^T, to batches (N, D); return the mean (D,) and the matrix (D, D)."""
    count, total, products = 0, torch.zeros(()), torch.zeros(())
    for batch in batches:
        rows = batch.double()
        count += len(rows)
        total, products = total + rows.sum(0), products + rows.T @ rows
    mean = total / count
    values, vectors = torch.linalg.eigh(products / count - mean.outer(mean))
    scales = (values.clamp(min=0) + WHITENING_FLOOR).rsqrt()
    return mean.float(), ((vectors * scales) @ vectors.T).float()


def spherical_kmeans(
    patches: Pixels,
    mean: Tensor,
    whitening: Tensor,
    settings: KMeansSettings,
    random: np.random.Generator,
    advance: Callable[[], None],
) -> Tensor:
    """Run spherical k-means on whitened patches (N, D); return centroids of length 1, (K, D).

    Each patch is assigned to the centroid with the largest product. After each mini-batch a centroid becomes the
    normalised sum of its patches, in which older mini-batches decay with a time constant of one pass. A centroid that
    received no patch during a pass is replaced by a random patch.
    """

    def whiten(rows: NDArray[np.int64]) -> Tensor:
        return (normalise(torch.from_numpy(patches[rows]).float()) - mean) @ whitening

    sums = whiten(random.choice(len(patches), settings.filters, replace=False))
    centroids = F.normalize(sums)
    decay = 1 - 1 / -(-len(patches) // BATCH_PATCHES)
    for _ in range(settings.passes):
        used = torch.zeros(settings.filters, dtype=torch.bool)
        order = random.permutation(len(patches))
        for start in range(0, len(order), BATCH_PATCHES):
            batch = whiten(order[start : start + BATCH_PATCHES])
            assignment = (batch @ centroids.T).argmax(1)
            used[assignment] = True
            # A centroid whose sum has decayed to zero is unchanged.
            sums = (sums * decay).index_add(0, assignment, batch)
            centroids = torch.where(sums.norm(dim=1, keepdim=True) > 0, F.normalize(sums), centroids)
            advance()
        if not used.all():
            unused = ~used
            sums[unused] = whiten(random.choice(len(patches), int(unused.sum()), replace=False))
            centroids[unused] = F.normalize(sums[unused])
    return centroids


def save_filters(path: Path, filters: Filters) -> None:
    """Write a dictionary and its settings to a safetensors file; RunError if it cannot be written."""
    tensors = {name: values for name, values in filters._asdict().items() if name != "settings"}
    settings = filters.settings
    # Without the default activation, a file has the bytes, and its features the fingerprint, that they always had.
    usual = {"activation", "alpha"} if settings.activation_name is None else set[str]()
    save_tensors(path, tensors, {_FACTS_KEY: settings.model_dump(mode="json", exclude=usual)})


def load_filters(path: Path) -> Filters:
    """Read a dictionary of `save_filters`; BackboneError if it is missing or damaged, or has infinite values or NaN."""
    remedy = "learn filters with 'limner kmeans COLLECTION --out FILE'"
    if not path.is_file():
        raise BackboneError(f"{path}: no such file; {remedy}, or give their location as kmeans:FILE")
    tensors, facts = read_tensors(path, BackboneError, remedy)
    if _FACTS_KEY not in facts:
        raise BackboneError(f"{path}: not k-means filters: the header has no settings of Limner; {remedy}")
    settings = KMeansSettings.parse(facts[_FACTS_KEY], str(path))
    depth = 3 * settings.patch**2
    expected = {"mean": (depth,), "whitening": (depth, depth), "centroids": (settings.filters, depth)}
    actual = {name: tuple(values.shape) for name, values in tensors.items()}
    if actual != expected:
        raise BackboneError(f"{path}: expected tensors of shapes {expected} by its settings, got {actual}; {remedy}")
    return Filters(settings, **tensors)


def filter_sheet(filters: Filters, *, zoom: int = 8, columns: int = 16) -> Image.Image:
    """Draw the filters as un-whitened patches, grey for zero: `columns` in a row, `zoom` pixels for each of a patch."""
    side = filters.settings.patch
    patches = torch.linalg.solve(filters.whitening.double(), filters.centroids.double().T).T  # the matrix is symmetric
    patches = 127.5 * (1 + patches / patches.abs().amax(1, keepdim=True).clamp(min=1e-12))
    tiles = patches.reshape(-1, 3, side, side).permute(0, 2, 3, 1).round().byte().numpy()
    step = side * zoom + 4
    sheet = Image.new("RGB", (columns * step + 4, -(-len(tiles) // columns) * step + 4), "white")
    for number, tile in enumerate(tiles):
        enlarged = Image.fromarray(tile).resize((side * zoom, side * zoom), Image.Resampling.NEAREST)
        sheet.paste(enlarged, (4 + number % columns * step, 4 + number // columns * step))
    return sheet


def read_pixels(source: ImageInput, settings: KMeansSettings) -> Pixels:
    """Open an image, resized to a square, (1, size, size, 3); MediaError if it is damaged or smaller than a patch."""
    image = open_image(source, min_side=settings.size)
    if min(image.size) < settings.patch:
        width, height = image.size
        raise MediaError(
            f"{describe_input(source)}: {width} x {height} pixels, smaller than a patch of {settings.patch} x "
            f"{settings.patch}; remove the image, or learn filters of a smaller patch"
        )
    return preprocess(image, settings.preprocessing)
