"""Feature maps of a dictionary learned by k-means, for models that learn to see: no pre-trained network is needed.

Kiros et al. (2014), section 5, after Coates and Ng (2011): small patches of training pictures are contrast-normalised
and whitened, spherical k-means finds a dictionary of filters, and a picture becomes, for every filter, a coarse map of
how much more than usual each part of it looks like that filter.

Where the papers leave a choice: the "soft activation" is the triangle, max(0, mean(z) - z_k); a patch goes to the
centroid of the largest product with its sign, since the triangle sees one side only, so that an edge and its opposite
have filters of their own; and the centroids move after every mini-batch, not after every pass.

Here D is the size of a patch, 3 * patch * patch (channel by channel, then row by row), and K the number of filters.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field, model_validator
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from limner.data.collection import Collection
from limner.errors import BackboneError, CollectionError, MediaError
from limner.features.preprocessing import Preprocessing, preprocess, raw_pixels
from limner.features.store import FeatureSpec, Kind, Prepared, Values
from limner.files import atomic_write
from limner.media.image import ImageInput, Pixels, describe_input, open_image
from limner.media.modality import IMAGE
from limner.settings import Settings

logger = logging.getLogger(__name__)

CONTRAST_FLOOR = 10.0
"""Added to a patch's variance (values 0..255), so that noise in flat places is not blown up; Coates and Ng (2011)."""
WHITENING_FLOOR = 0.1
"""Added to the eigenvalues of the normalised patches' covariance; Coates and Ng (2011)."""
BATCH_PATCHES = 10_000
_METADATA_KEY = "limner.kmeans"


class KMeansSettings(Settings):
    """How a dictionary of filters is learned and applied; the defaults are the published ones where there are any."""

    size: int = Field(default=64, ge=2, le=1024)
    """Side to which pictures are squashed, in pixels."""
    patch: int = Field(default=6, ge=2)
    """Side r of a patch, in pixels."""
    filters: int = Field(default=128)
    """k_f, the number of centroids and of maps, 4 at least: models take maps of three channels for pixels."""
    grid: int = Field(default=9, ge=1)
    """G: each map is max-pooled to G x G."""
    patches: int = Field(default=200_000, ge=2)
    """Patches learned from, spread evenly over the pictures; each takes 3 * patch * patch bytes of memory."""
    passes: int = Field(default=10, ge=1)
    """How often k-means goes through the patches."""
    seed: int = Field(default=1, ge=0)
    """Decides which patches are drawn and where the centroids begin."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.filters < 4:
            raise ValueError(
                f"{self.filters} filters are too few: models take maps of three channels for the pixels of a picture; "
                "take at least 4"
            )
        if self.patch > self.size:
            raise ValueError(f"a patch of {self.patch} pixels is larger than the picture of size {self.size}")
        if self.grid > self.places:
            raise ValueError(
                f"a grid of {self.grid} is finer than the maps, which have {self.places} places a side "
                f"(size {self.size} - patch {self.patch} + 1); take a smaller grid or a larger size"
            )
        return self

    @property
    def places(self) -> int:
        """Patches along one side of a picture."""
        return self.size - self.patch + 1

    @property
    def preprocessing(self) -> Preprocessing:
        return raw_pixels(self.size)


class Filters(NamedTuple):
    """A learned dictionary; a whitened patch is (normalised - mean) @ whitening."""

    settings: KMeansSettings
    mean: Tensor  # (D,) of normalised patches
    whitening: Tensor  # (D, D), symmetric
    centroids: Tensor  # (K, D), whitened, of length 1


def learn_filters(
    collection: Collection,
    settings: KMeansSettings,
    *,
    split: str = "train",
    progress: Callable[[int, int], None] | None = None,
) -> Filters:
    """Learn a dictionary from the pictures of a split: patches, contrast, ZCA whitening, spherical k-means.

    Memory holds the patches as bytes, and one batch of them as numbers. The same settings and pictures give the same
    filters.

    Args:
        collection: items without a picture are passed over, and pictures that cannot be read are skipped.
        settings: see `KMeansSettings`.
        split: whose pictures are learned from.
        progress: called with the pictures and batches that are done, and all there are.

    Raises:
        CollectionError: there is no such split, or its pictures have fewer patches than filters are wanted.
    """
    paths = [collection.image_path(item) for item in collection.items(split) if item.image is not None]
    if not paths:
        raise CollectionError(f"{collection.path}: split '{split}' has no pictures to learn filters from; name another")
    random = np.random.default_rng(settings.seed)
    batches = -(-settings.patches // BATCH_PATCHES)
    total = len(paths) + settings.passes * batches
    done = 0

    def note(steps: int = 1) -> None:
        nonlocal done
        done = min(done + steps, total)
        if progress is not None:
            progress(done, total)

    patches = _draw_patches(paths, settings, random, note)
    if len(patches) < settings.filters:
        raise CollectionError(
            f"{collection.path}: the pictures of split '{split}' give {len(patches)} patches that are not of one grey, "
            f"fewer than {settings.filters} filters; add pictures, or ask for fewer filters"
        )
    mean, whitening = fit_whitening(_batches(patches))
    centroids = spherical_kmeans(patches, mean, whitening, settings, random, note)
    note(total)
    return Filters(settings, mean, whitening, centroids)


def _draw_patches(
    paths: Sequence[Path], settings: KMeansSettings, random: np.random.Generator, note: Callable[[], None]
) -> Pixels:
    """Draw patches at random, equally many from each picture, (N, D); patches of a single grey are left out."""
    order = random.permutation(len(paths))
    shares = np.full(len(paths), settings.patches // len(paths))
    shares[: settings.patches % len(paths)] += 1
    # A generator for each picture: it does not matter then which of them is decoded first, or cannot be.
    seeds = random.integers(2**63, size=len(paths))

    def cut(number: int) -> Pixels | MediaError:
        try:
            picture = read_pixels(paths[order[number]], settings)[0]
        except MediaError as error:
            return error
        patches = _some_patches(picture, settings, int(shares[number]), np.random.default_rng(seeds[number]))
        uneven: Pixels = patches[patches.min(1) < patches.max(1)]
        return uneven

    found: list[Pixels] = []
    skipped: list[MediaError] = []
    pool = ThreadPoolExecutor(os.cpu_count())
    try:
        for patches in pool.map(cut, range(np.count_nonzero(shares))):
            if isinstance(patches, MediaError):
                skipped.append(patches)
            else:
                found.append(patches)
            note()
    finally:
        pool.shutdown(cancel_futures=True)
    if skipped:
        logger.warning("%d pictures were skipped; the first: %s", len(skipped), skipped[0])
    return np.concatenate(found) if found else np.empty((0, 3 * settings.patch**2), np.uint8)


def _some_patches(picture: Pixels, settings: KMeansSettings, count: int, random: np.random.Generator) -> Pixels:
    """Patches of one picture at different places, (N, D), as many as it has at most."""
    windows = sliding_window_view(picture, (settings.patch, settings.patch), axis=(0, 1))  # (n, n, 3, r, r)
    drawn = random.choice(settings.places**2, min(count, settings.places**2), replace=False)
    patches: Pixels = windows[np.divmod(drawn, settings.places)].reshape(len(drawn), -1)
    return patches


def normalise(patches: Tensor) -> Tensor:
    """Contrast normalisation, (p - mean) / sqrt(variance + 10), of patches (N, D) with values 0..255."""
    centred = patches - patches.mean(1, keepdim=True)
    return centred / (centred.square().mean(1, keepdim=True) + CONTRAST_FLOOR).sqrt()


def _batches(patches: Pixels) -> Iterator[Tensor]:
    """Normalised patches, some thousands at a time."""
    for start in range(0, len(patches), BATCH_PATCHES):
        yield normalise(torch.from_numpy(patches[start : start + BATCH_PATCHES]).float())


def fit_whitening(batches: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """ZCA whitening, V (Lambda + 0.1)^(-1/2) V^T, of normalised patches that come in batches (N, D).

    Returns:
        The patches' mean (D,) and the whitening matrix (D, D).
    """
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
    note: Callable[[], None],
) -> Tensor:
    """Find directions: a patch belongs to the one it has the largest product with, which is its patches' mean.

    The directions move after every mini-batch: each is the sum of its patches, in which what was seen a whole pass
    ago counts for little. One that no patch belonged to in a pass begins anew at a patch drawn at random.

    Args:
        patches: (N, D) bytes, N at least `settings.filters`.
        mean: of normalised patches, (D,).
        whitening: (D, D).
        settings: `filters` and `passes` are used here.
        random: draws beginnings and the order of patches.
        note: called after every batch.

    Returns:
        Centroids (K, D) of length 1.
    """

    def whiten(rows: NDArray[np.int64]) -> Tensor:
        return (normalise(torch.from_numpy(patches[rows]).float()) - mean) @ whitening

    sums = whiten(random.choice(len(patches), settings.filters, replace=False))
    centroids = F.normalize(sums)
    fade = 1 - 1 / -(-len(patches) // BATCH_PATCHES)
    for _ in range(settings.passes):
        used = torch.zeros(settings.filters, dtype=torch.bool)
        order = random.permutation(len(patches))
        for start in range(0, len(order), BATCH_PATCHES):
            batch = whiten(order[start : start + BATCH_PATCHES])
            nearest = (batch @ centroids.T).argmax(1)
            used[nearest] = True
            # A centroid whose patches have faded to nothing stays where it is.
            sums = (sums * fade).index_add(0, nearest, batch)
            centroids = torch.where(sums.norm(dim=1, keepdim=True) > 0, F.normalize(sums), centroids)
            note()
        if not used.all():
            unused = ~used
            sums[unused] = whiten(random.choice(len(patches), int(unused.sum()), replace=False))
            centroids[unused] = F.normalize(sums[unused])
    return centroids


def save_filters(path: Path, filters: Filters) -> None:
    """Write a dictionary as one safetensors file with its settings; RunError where the disk refuses."""
    tensors = {name: values.contiguous() for name, values in filters._asdict().items() if name != "settings"}
    with atomic_write(path, SafetensorError) as beside:
        save_file(tensors, beside, metadata={_METADATA_KEY: filters.settings.model_dump_json()})
        beside.chmod(0o644)  # safetensors makes files that only their owner may read


def load_filters(path: Path) -> Filters:
    """Read what `save_filters` wrote.

    Raises:
        BackboneError: the file is missing, damaged, or holds something else.
    """
    remedy = "make filters with 'limner kmeans COLLECTION --out FILE'"
    if not path.is_file():
        raise BackboneError(f"{path}: no such file; {remedy}, or say where they are now (kmeans:FILE)")
    try:
        with safe_open(path, framework="pt") as stored:
            written = (stored.metadata() or {}).get(_METADATA_KEY)
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 (not a dict)
    except (OSError, SafetensorError) as error:
        raise BackboneError(f"{path}: damaged, or no safetensors file ({error}); {remedy}") from None
    if written is None:
        raise BackboneError(f"{path}: holds no filters of k-means (its header does not say so); {remedy}")
    settings = KMeansSettings.parse(json.loads(written), str(path))
    depth = 3 * settings.patch**2
    expected = {"mean": (depth,), "whitening": (depth, depth), "centroids": (settings.filters, depth)}
    found = {name: tuple(values.shape) for name, values in tensors.items()}
    if found != expected:
        raise BackboneError(f"{path}: holds {found}, but its settings ask for {expected}; {remedy}")
    return Filters(settings, **tensors)


def filter_sheet(filters: Filters, *, zoom: int = 8, columns: int = 16) -> Image.Image:
    """Draw the filters as what they look for: each centroid un-whitened, grey is nothing.

    Args:
        filters: the dictionary.
        zoom: screen pixels for each pixel of a patch.
        columns: tiles in a row.
    """
    side = filters.settings.patch
    looks = torch.linalg.solve(filters.whitening.double(), filters.centroids.double().T).T  # the matrix is symmetric
    looks = 127.5 * (1 + looks / looks.abs().amax(1, keepdim=True).clamp(min=1e-12))
    tiles = looks.reshape(-1, 3, side, side).permute(0, 2, 3, 1).round().byte().numpy()
    step = side * zoom + 4
    sheet = Image.new("RGB", (columns * step + 4, -(-len(tiles) // columns) * step + 4), "white")
    for number, tile in enumerate(tiles):
        enlarged = Image.fromarray(tile).resize((side * zoom, side * zoom), Image.Resampling.NEAREST)
        sheet.paste(enlarged, (4 + number % columns * step, 4 + number // columns * step))
    return sheet


def read_pixels(source: ImageInput, settings: KMeansSettings) -> Pixels:
    """Open a picture and squash it, (1, size, size, 3); MediaError for one smaller than a patch."""
    picture = open_image(source, min_side=settings.size)
    if min(picture.size) < settings.patch:
        width, height = picture.size
        raise MediaError(
            f"{describe_input(source)}: {width} x {height} pixels, smaller than a patch of {settings.patch} x "
            f"{settings.patch}; leave it out, or learn filters of a smaller patch"
        )
    return preprocess(picture, settings.preprocessing)


class KMeansBackbone:
    """Looks at pictures through a learned dictionary; each gives maps (K, G, G).

    Args:
        path: what `save_filters` wrote.

    Raises:
        BackboneError: it holds no filters.
    """

    modality = IMAGE

    def __init__(self, path: Path) -> None:
        self._filters = load_filters(path)
        settings = self._filters.settings
        self.preprocessing = settings.preprocessing
        # One product gives the whitened patch w, (D,), and its products with the centroids, (K,).
        self._weights = torch.cat([self._filters.whitening, self._filters.whitening @ self._filters.centroids.T], 1).T
        self._offset = (self._weights @ self._filters.mean)[:, None]
        self._lengths = self._filters.centroids.square().sum(1)[:, None]
        spec = FeatureSpec(
            name="kmeans",
            kind="maps",
            shape=(settings.filters, settings.grid, settings.grid),
            backbone="kmeans",
            preprocessing=self.preprocessing.model_dump(mode="json"),
            weights_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
            source=f"kmeans:{path.resolve()}",
        )
        self.specs: tuple[FeatureSpec, ...] = (spec,)

    def read(self, source: ImageInput) -> Prepared:
        return read_pixels(source, self._filters.settings)

    def __call__(self, pixels: Prepared) -> dict[Kind, Values]:
        threads = torch.get_num_threads()
        if threads == 1 or len(pixels) == 1:
            return {"maps": np.stack([self._see(picture[0]) for picture in pixels])}
        # A picture is the slice that stays in the processor's cache; a thread for each uses all of them.
        try:
            with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                return {"maps": np.stack(list(pool.map(self._see, pixels[:, 0])))}
        finally:
            torch.set_num_threads(threads)  # the workers' number became that of every new thread

    @torch.inference_mode()
    def _see(self, picture: Pixels) -> Values:
        """One picture, (H, W, 3): triangle activation at every place, max-pooled; Coates and Ng (2011), section 3.

        f_k = max(0, mean(z) - z_k), where z_k is the Euclidean distance of the whitened patch to centroid k.
        """
        settings = self._filters.settings
        image = torch.from_numpy(picture.transpose(2, 0, 1).astype(np.float32))
        patches = F.unfold(image[None], settings.patch)[0]  # (D, n * n)
        seen = self._weights @ normalise(patches.T).T - self._offset
        whitened, products = seen[: len(patches)], seen[len(patches) :]
        distances = (whitened.square().sum(0) - 2 * products + self._lengths).clamp(min=0).sqrt()
        above = distances.mean(0) - distances  # (K, n * n)
        maps = above.view(settings.filters, settings.places, settings.places)
        # The largest of values cut off at zero is the largest value, cut off at zero.
        pooled = F.adaptive_max_pool2d(maps, settings.grid).clamp(min=0)
        values: Values = pooled.numpy().astype(np.float16)
        return values
