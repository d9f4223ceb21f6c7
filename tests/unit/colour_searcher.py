"""An index of folders of images of one colour, which are searched by the name of the colour."""

import numpy as np
from PIL import Image

from limner.apps.photos.index import FolderIndex as BuiltInFolderIndex

COLOURS = {"red": (250, 20, 20), "green": (20, 250, 20), "blue": (20, 20, 250), "white": (250, 250, 250)}


class ColourSearcher:
    """Searches images of one colour by its name; in place of the built-in searcher."""

    digest, vector_dim, side, space = "colours", 3, 8, ""

    def read(self, image):
        image = image if isinstance(image, Image.Image) else Image.open(image)
        return np.asarray(image.convert("RGB").resize((1, 1)))

    def features_of(self, images):
        return [{"pooled": image.reshape(3) / np.float32(255)} for image in images]

    def vector_of(self, features):
        return features["pooled"]

    def project(self, vectors):
        return vectors

    def scores(self, sentence, vectors, projected):
        (colour,) = [value for name, value in COLOURS.items() if name in sentence]
        return -np.abs(vectors - np.float32(colour) / 255).sum(1)


class FolderIndex(BuiltInFolderIndex):
    """The index of a folder, with `ColourSearcher`."""

    def __init__(self, folder, index=None, searcher=None):
        super().__init__(folder, index, searcher or ColourSearcher())
