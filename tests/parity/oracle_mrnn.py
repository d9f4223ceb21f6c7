"""A slow oracle of the m-RNN, written from the equations of Mao et al. (2015) in NumPy float64.

One sentence, one image, one word at a time; nothing is batched, so each line can be read against the
paper. A sentence is the ids (start token, w_1 ... w_L, end token); an image is one vector I of D numbers,
which RNN-base does not look at.

Where the paper is silent or contradicts itself, the oracle reads it so:

- eqs. 1-3 have no bias; the oracle adds the named ones, and zero biases give the printed equations back.
- r(0) = 0, and the start token is the first word put in: r(1) = ReLU(w(start)).
- eq. 2 adds w(t) to the recurrent layer, so H equals the dimension of the word representation.
- embedding layer I is a table without activation. Layer II has `embedding_activation`, and an image that
  enters layer II is added before it. 'OneLayerEmb' has no layer II, so its table is w(t) as it stands.
- the end token is one of the L words of eqs. 5-7, since the model must learn to stop
  (`score_end_sign=False` takes w_{1:L} to the letter); the start token is never predicted.
- theta in eq. 6 is every array given, biases too; a shared matrix counts once, the CNN is fixed and outside.
- P(I') in eq. 7 is dropped, so the marginal is a sum, not a mean, over the sampled images.
- 'visInRnn-both-shared' has one matrix for both connections. That is possible only if the multimodal layer
  and embedding layer II have one dimension, so M must equal E2 there (the paper's 512 and 256 cannot).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Parameters = Mapping[str, Array]
Words = Sequence[int]
Pair = tuple[Words, Array]

EmbeddingVariant = Literal["NoEmbInput", "OneLayerEmb", "EmbOneInput"]
ImageVariant = Literal["visInRnn", "visInRnn-both", "visInRnn-both-shared"]
Variant = Literal["m-RNN", "RNN-base"] | EmbeddingVariant | ImageVariant

IMAGE_IN_MULTIMODAL = ("m-RNN", "NoEmbInput", "OneLayerEmb", "EmbOneInput", "visInRnn-both")


@dataclass(frozen=True)
class OracleSettings:
    """Which network of Table 8 (or Table 1's RNN-base) is meant, and how the paper's gaps are read."""

    variant: Variant
    embedding_activation: Literal["linear", "relu"]
    score_end_sign: bool = True


def relu(x: Array) -> Array:
    """f_2 of eq. 2."""
    return np.maximum(x, 0.0)


def scaled_tanh(x: Array) -> Array:
    """g_2, eq. 4."""
    return 1.7159 * np.tanh(2.0 / 3.0 * x)


def word_representation(theta: Parameters, settings: OracleSettings, word: int, image: Array) -> Array:
    """w(t), the activation of embedding layer II (section 3.2), with the image where 9.1 adds it."""
    layer_one: Array = theta["embedding_1"][word]
    if settings.variant == "OneLayerEmb":
        return layer_one
    total = theta["embedding_2.weight"] @ layer_one + theta["embedding_2.bias"]
    if settings.variant in ("visInRnn", "visInRnn-both"):
        total = total + theta["visual_in_rnn"] @ image
    elif settings.variant == "visInRnn-both-shared":
        total = total + theta["visual_shared"] @ image
    return relu(total) if settings.embedding_activation == "relu" else total


def recurrent_layer(theta: Parameters, previous: Array, w: Array) -> Array:
    """r(t), eq. 2."""
    return relu(theta["recurrent"] @ previous + w)


def multimodal_layer(theta: Parameters, settings: OracleSettings, word: int, w: Array, r: Array, image: Array) -> Array:
    """m(t), eq. 3, less the connections that the variant cuts (section 9.1)."""
    total = theta["multimodal_recurrent"] @ r + theta["multimodal_bias"]
    if settings.variant == "EmbOneInput":
        total = total + theta["multimodal_word"] @ theta["embedding_1"][word]
    elif settings.variant != "NoEmbInput":
        total = total + theta["multimodal_word"] @ w
    if settings.variant in IMAGE_IN_MULTIMODAL:
        total = total + theta["multimodal_visual"] @ image
    elif settings.variant == "visInRnn-both-shared":
        total = total + theta["visual_shared"] @ image
    return scaled_tanh(total)


def log_softmax(theta: Parameters, m: Array) -> Array:
    """Natural log of the softmax layer's activation, word by word, (V,)."""
    weight, bias = theta["softmax.weight"], theta["softmax.bias"]
    energies = [float(weight[word] @ m + bias[word]) for word in range(len(bias))]
    return np.array(energies) - log_sum_exp(energies)


def log_sum_exp(logs: Sequence[float]) -> float:
    """log of the sum of exp(logs), safe for numbers far below the smallest float."""
    largest = max(logs)
    return largest + math.log(sum(math.exp(x - largest) for x in logs))


def next_word_log_probs(theta: Parameters, settings: OracleSettings, words: Words, image: Array) -> Array:
    """Natural log of P(. | words[: n + 1], I) for every n, (len(words), V); words[0] is the start token."""
    r = np.zeros(theta["recurrent"].shape[0])
    rows = []
    for word in words:
        w = word_representation(theta, settings, word, image)
        r = recurrent_layer(theta, r, w)
        rows.append(log_softmax(theta, multimodal_layer(theta, settings, word, w, r, image)))
    return np.array(rows)


def scored_words(settings: OracleSettings, sentence: Words) -> Words:
    """The words whose probabilities enter eqs. 5-7; their number is L."""
    return sentence[1:] if settings.score_end_sign else sentence[1:-1]


def sentence_log_prob(theta: Parameters, settings: OracleSettings, sentence: Words, image: Array) -> float:
    """Natural log of P(w_{1:L} | I), the affinity that ranks images for a sentence (section 5)."""
    log_probs = next_word_log_probs(theta, settings, sentence[:-1], image)
    return sum(float(log_probs[n, word]) for n, word in enumerate(scored_words(settings, sentence)))


def log2_perplexity(theta: Parameters, settings: OracleSettings, sentence: Words, image: Array) -> float:
    """Eq. 5, in bits per word."""
    log2_prob = sentence_log_prob(theta, settings, sentence, image) / math.log(2.0)
    return -log2_prob / len(scored_words(settings, sentence))


def cost(theta: Parameters, settings: OracleSettings, pairs: Sequence[Pair], weight_decay: float) -> float:
    """Eq. 6: bits per word over all N words of all pairs, plus `weight_decay` (lambda) times ||theta||^2."""
    bits, words = 0.0, 0
    for sentence, image in pairs:
        length = len(scored_words(settings, sentence))
        bits += length * log2_perplexity(theta, settings, sentence, image)
        words += length
    squares = sum(float(x) ** 2 for array in theta.values() for x in array.ravel())
    return bits / words + weight_decay * squares


def normalised_log_prob(
    theta: Parameters, settings: OracleSettings, sentence: Words, image: Array, samples: Sequence[Array]
) -> float:
    """Natural log of eq. 7, the affinity that ranks sentences for an image; `samples` are the I'."""
    log_marginal = log_sum_exp([sentence_log_prob(theta, settings, sentence, i) for i in samples])
    return sentence_log_prob(theta, settings, sentence, image) - log_marginal
