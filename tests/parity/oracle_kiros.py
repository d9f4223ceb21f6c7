"""A slow oracle of the log-bilinear family, written from Kiros et al. (2014) in NumPy float64.

One context, one image, one patch at a time; nothing is batched, so each line can be read against the
paper. Words are ids 0 ... k-1; a sentence is its words and then the end token; an image is one vector x.

Where the paper is silent or contradicts itself, the oracle reads it so:

- C[0] is the paper's C_1 and belongs to w_1, the word farthest back; C[-1] to the word just before.
- eqs. 2, 4 and 9 normalise over all k words; a word never to be predicted is given the bias -inf.
- C_m is (d, m): it adds to a vector of d numbers, so "k x m" below eq. 3 is a slip.
- eq. 6: the signs between the three factors are matrix products and the result is (k, d), so R_x, not
  its transpose; likewise E = W_hf W_fr, not its transpose, in section 4.2.
- the first words have too short a past, which is filled with the start token.
- the end token is one of the words of a sentence where words are counted: in the N of eq. 10 and in "word C + 1".
- the perplexity of many descriptions pools their words; it is not a mean of perplexities.
- "the pipeline of [22]": constants 10 and 0.1 for patches of values 0-255, ZCA whitening, patches going to
  the centroid of largest dot product with its sign, and the triangle activation for "soft activation".
- [23]'s response normalisation has k = 2, n = 5, alpha = 1e-4, beta = 0.75, alpha not divided by n.
- "Back-off GTn": Katz (1987) with K = 5. Open details are documented at each function.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Words = Sequence[int]
Context = tuple[int, ...]
Distribution = Callable[[Context], Array]
ConditionalDistribution = Callable[[Context, Array], Array]
NGramCounts = Sequence[Mapping[Context, int]]


# Sections 3 and 4: the language models


def softmax(scores: Sequence[float]) -> Array:
    """The normalisation of eqs. 2, 4 and 9; taking the largest from each score changes nothing but the range."""
    largest = max(scores)
    energies = [math.exp(score - largest) for score in scores]
    return np.array([energy / sum(energies) for energy in energies])


def lbl_predict(R: Array, C: Sequence[Array], context: Context) -> Array:
    """r_hat, eq. 1, (d,).

    Args:
        R: word representations, (k, d).
        C: n-1 matrices (d, d), of the most distant word first.
        context: the n-1 words before, in the order of the sentence.
    """
    prediction = np.zeros(R.shape[1])
    for C_i, word in zip(C, context, strict=True):
        prediction = prediction + C_i @ R[word]
    return prediction


def score_words(prediction: Array, R: Array, b: Array) -> Array:
    """Eqs. 2 and 4: the predicted representation (d,) against every word's, (k,)."""
    return softmax([float(prediction @ R[w] + b[w]) for w in range(len(b))])


def lbl_distribution(R: Array, C: Sequence[Array], b: Array, context: Context) -> Array:
    """P(. | context), eqs. 1-2, (k,)."""
    return score_words(lbl_predict(R, C, context), R, b)


def mlblb_distribution(R: Array, C: Sequence[Array], C_m: Array, b: Array, context: Context, x: Array) -> Array:
    """P(. | context, x), eqs. 3-4, (k,); C_m is (d, m), x (m,)."""
    return score_words(lbl_predict(R, C, context) + C_m @ x, R, b)


def mlblf_distribution(
    W_hf: Array, W_fx: Array, W_fr: Array, C: Sequence[Array], C_m: Array, b: Array, context: Context, x: Array
) -> Array:
    """P(. | context, x), eqs. 7-9, (k,).

    Args:
        W_hf: (k, f); W_fx: (f, m); W_fr: (f, d). The rows of W_hf W_fr, (k, d), represent the words.
        C: n-1 matrices (d, d), of the word farthest back first; C_m: (d, m); b: (k,).
        context: the n-1 words before, in the order of the sentence; x: (m,).
    """
    prediction = lbl_predict(W_hf @ W_fr, C, context) + C_m @ x
    factors = (W_fr @ prediction) * (W_fx @ x)
    return softmax([float(W_hf[w] @ factors + b[w]) for w in range(len(b))])


def svd_start(E: Array, f: int) -> tuple[Array, Array]:
    """W_hf (k, f) and W_fr (f, d) from embeddings E (k, d), end of section 4.2.

    The best approximation of rank f, each singular value shared as a square root to either side; E itself
    at f = d.

    Raises:
        ValueError: f is above d.
    """
    k, d = E.shape
    if f > d:
        raise ValueError(f"f = {f} factors, but E has only d = {d} columns")
    U, singular, V_T = np.linalg.svd(E, full_matrices=False)
    W_hf, W_fr = np.zeros((k, f)), np.zeros((f, d))
    for i in range(min(f, len(singular))):
        W_hf[:, i] = U[:, i] * math.sqrt(singular[i])
        W_fr[i] = math.sqrt(singular[i]) * V_T[i]
    return W_hf, W_fr


# Sections 6 and 7.2: perplexity and retrieval


def contexts(words: Words, n_minus_1: int, start: int) -> list[Context]:
    """The n-1 words before every position of `words`, the word just before last (section 3)."""
    padded = [start] * n_minus_1 + list(words)
    return [tuple(padded[i : i + n_minus_1]) for i in range(len(words))]


def word_log_probs(words: Words, distribution: Distribution, n_minus_1: int, start: int) -> list[float]:
    """Natural log of P(w_n | w_{1:n-1}) for every word, the terms of eq. 10; `words` includes the end token."""
    logs = []
    for word, context in zip(words, contexts(words, n_minus_1, start), strict=True):
        probability = float(distribution(context)[word])
        logs.append(math.log(probability) if probability > 0.0 else -math.inf)
    return logs


def perplexity_of_logs(logs: Sequence[float]) -> float:
    """Eq. 10 from natural logs: 2 to the mean bits, N being the number of logs."""
    return float(2.0 ** (-sum(log / math.log(2.0) for log in logs) / len(logs)))


def perplexity(words: Words, distribution: Distribution, n_minus_1: int, start: int) -> float:
    """C(w_{1:N} | x), eq. 10; `words` ends with the end token, which is one of the N."""
    return perplexity_of_logs(word_log_probs(words, distribution, n_minus_1, start))


def perplexity_from_word(
    descriptions: Sequence[tuple[Words, Distribution]], n_minus_1: int, start: int, largest_context: int, shortest: int
) -> float:
    """Section 7.2: eq. 10 over the words from C + 1 on, without descriptions shorter than C + 3 words.

    The words counted are the description's words and its end token; the words before are still read as context.

    Args:
        descriptions: words with the end token, and the model as conditioned on that description's image.
        n_minus_1: the model's own context size.
        start: the start token.
        largest_context: C, the largest context size among the models compared.
        shortest: entries of `words` that a description needs: C + 3, or one more where the end token is not taken
            for one of a description's words; the paper does not say.

    Raises:
        ValueError: no description is long enough.
    """
    logs: list[float] = []
    for words, distribution in descriptions:
        if len(words) >= shortest:
            logs += word_log_probs(words, distribution, n_minus_1, start)[largest_context:]
    if not logs:
        raise ValueError(f"no description of {shortest} words or more")
    return perplexity_of_logs(logs)


def given(model: ConditionalDistribution, x: Array) -> Distribution:
    """P(. | context, x) as a function of the context alone."""
    return lambda context: model(context, x)


def text_to_image_scores(
    words: Words, images: Sequence[Array], model: ConditionalDistribution, n_minus_1: int, start: int
) -> list[float]:
    """C(w | x) for every image x (section 6); the lowest is the best match."""
    return [perplexity(words, given(model, x), n_minus_1, start) for x in images]


def image_to_text_scores(
    x: Array, mean: Array, sentences: Sequence[Words], model: ConditionalDistribution, n_minus_1: int, start: int
) -> list[float]:
    """C(w | x) / C(w | mean) for every sentence w (section 6); `mean` is the training set's mean image.

    The lowest is the best match.
    """
    ratios = []
    for words in sentences:
        given_image, given_mean = text_to_image_scores(words, [x, mean], model, n_minus_1, start)
        ratios.append(given_image / given_mean)
    return ratios


def shortlist(x: Array, images: Sequence[Array], k_r: int) -> list[int]:
    """Numbers of the k_r images nearest x by Euclidean distance (section 6), nearest first; of equals, the first."""
    distances = [math.sqrt(sum((a - b) ** 2 for a, b in zip(x, image, strict=True))) for image in images]
    return sorted(range(len(images)), key=lambda i: (distances[i], i))[:k_r]


# Section 5: feature maps by k-means, and the convolutional network


def contrast_normalise(p: Array) -> Array:
    """One patch of values 0-255, less its mean, over the root of its variance plus 10."""
    mean = sum(p) / len(p)
    variance = sum((value - mean) ** 2 for value in p) / len(p)
    return np.array([(value - mean) / math.sqrt(variance + 10.0) for value in p])


def whitening(patches: Array) -> tuple[Array, Array]:
    """m (p,) and W (p, p) of the ZCA whitening W (patch - m), from contrast-normalised patches (N, p)."""
    N, size = patches.shape
    m = patches.sum(axis=0) / N
    covariance = np.zeros((size, size))
    for patch in patches:
        covariance += np.outer(patch - m, patch - m) / N
    D, V = np.linalg.eigh(covariance)
    return m, V @ np.diag((D + 0.1) ** -0.5) @ V.T


def spherical_kmeans_step(patches: Array, centroids: Array) -> Array:
    """One step of spherical k-means: whitened patches (N, p), centroids of unit length (k_f, p), before and after.

    Of equally good centroids the first takes the patch; one whose patches sum to nothing stays where it is.
    """
    sums = np.zeros_like(centroids)
    for patch in patches:
        products = [float(centroid @ patch) for centroid in centroids]
        sums[products.index(max(products))] += patch
    lengths = [math.sqrt(float(total @ total)) for total in sums]
    moved = [total / n if n > 0 else old for total, n, old in zip(sums, lengths, centroids, strict=True)]
    return np.array(moved)


def patches_of(image: Array, r: int) -> Iterator[tuple[int, int, Array]]:
    """Top row, left column and values, as (row, column, channel), of every r x r patch of an image (H, W, 3)."""
    for top in range(image.shape[0] - r + 1):
        for left in range(image.shape[1] - r + 1):
            yield top, left, image[top : top + r, left : left + r, :].reshape(-1)


def triangle(patch: Array, centroids: Array) -> Array:
    """f_k = max(0, mean_j(z_j) - z_k) with z_k the distance of the whitened patch to centroid k, (k_f,)."""
    z = [math.sqrt(float((patch - centroid) @ (patch - centroid))) for centroid in centroids]
    mean = sum(z) / len(z)
    return np.array([max(0.0, mean - z_k) for z_k in z])


def soft_threshold(patch: Array, centroids: Array, alpha: float) -> Array:
    """f_k = max(0, D_k . x - alpha) of the whitened patch x, (k_f,)."""
    return np.array([max(0.0, float(centroid @ patch) - alpha) for centroid in centroids])


def encode(image: Array, r: int, m: Array, W: Array, centroids: Array, alpha: float | None = None) -> Array:
    """Feature maps (H-r+1, W-r+1, k_f) of an image (H, W, 3) of values 0-255; centroids (k_f, 3rr).

    The activation is the triangle, or with alpha the soft threshold.
    """
    maps = np.zeros((image.shape[0] - r + 1, image.shape[1] - r + 1, len(centroids)))
    for top, left, patch in patches_of(image, r):
        x = W @ (contrast_normalise(patch) - m)
        maps[top, left] = triangle(x, centroids) if alpha is None else soft_threshold(x, centroids, alpha)
    return maps


def max_pool_grid(maps: Array, G: int) -> Array:
    """(rows, columns, k_f) to (G, G, k_f): region i covers floor(i n / G) ... ceil((i+1) n / G) - 1."""
    rows, columns, k_f = maps.shape
    pooled = np.zeros((G, G, k_f))
    for i in range(G):
        for j in range(G):
            height = slice(math.floor(i * rows / G), math.ceil((i + 1) * rows / G))
            width = slice(math.floor(j * columns / G), math.ceil((j + 1) * columns / G))
            pooled[i, j] = maps[height, width].max(axis=(0, 1))
    return pooled


def convolve(maps: Array, filters: Array, bias: Array) -> Array:
    """Filters (F, k_f, s, s), not flipped, at stride 1 and without padding: (k_f, n, n) to (F, n-s+1, n-s+1)."""
    size, side = filters.shape[-1], maps.shape[-1] - filters.shape[-1] + 1
    result = np.zeros((len(filters), side, side))
    for j in range(len(filters)):
        for y in range(side):
            for x in range(side):
                result[j, y, x] = np.sum(filters[j] * maps[:, y : y + size, x : x + size]) + bias[j]
    return result


def response_normalise(a: Array) -> Array:
    """Krizhevsky et al. (2012), section 3.3, over the channels of (N, rows, columns)."""
    k, n, alpha, beta = 2.0, 5, 1e-4, 0.75
    N = len(a)
    result = np.zeros_like(a)
    for i in range(N):
        first, last = max(0, i - n // 2), min(N - 1, i + n // 2)
        squares = sum(a[j] ** 2 for j in range(first, last + 1))
        result[i] = a[i] / (k + alpha * squares) ** beta
    return result


def max_pool(maps: Array) -> Array:
    """3 x 3 windows at stride 2 without padding: (N, 7, 7) to (N, 3, 3)."""
    channels, side = len(maps), (maps.shape[-1] - 3) // 2 + 1
    pooled = np.zeros((channels, side, side))
    for y in range(side):
        for x in range(side):
            pooled[:, y, x] = maps[:, 2 * y : 2 * y + 3, 2 * x : 2 * x + 3].max(axis=(1, 2))
    return pooled


def convnet(maps: Array, theta: Mapping[str, Array]) -> Array:
    """x (256,) from pooled maps (k_f, 9, 9), last paragraph of section 5.

    Args:
        maps: channels first.
        theta: `filters` (64, k_f, 3, 3), `filter_bias` (64,), `weight` (256, 576), `bias` (256,); the columns
            of `weight` run over (channel, row, column).
    """
    filtered = np.maximum(convolve(maps, theta["filters"], theta["filter_bias"]), 0.0)
    pooled = max_pool(response_normalise(filtered))
    return np.maximum(theta["weight"] @ pooled.reshape(-1) + theta["bias"], 0.0)


# Table 1: back-off n-grams with Good-Turing discounting


def katz_counts(sentences: Sequence[Words], order: int, start: int, end: int) -> list[Counter[Context]]:
    """Counts of 1-grams ... `order`-grams of sentences without special tokens; entry [m] holds the (m+1)-grams.

    Each sentence is padded with order-1 start tokens and closed by the end token. Only n-grams whose last word
    can be predicted count, so none ends in the start token.
    """
    counts: list[Counter[Context]] = [Counter() for _ in range(order)]
    for sentence in sentences:
        words = [*sentence, end]
        for word, context in zip(words, contexts(words, order - 1, start), strict=True):
            for m in range(order):
                counts[m][(*context[len(context) - m :], word)] += 1
    return counts


def katz_discounts(counts: Mapping[Context, int], K: int = 5) -> dict[int, float]:
    """d_r for r = 1 ... K among the n-grams of one order; above K it is 1.

    A d_r that cannot be computed or is not in (0, 1] is 1, and only that one.
    """
    n = Counter(counts.values())
    discounts = {}
    for r in range(1, K + 1):
        discounts[r] = 1.0
        if n[1] == 0 or n[r] == 0 or n[r + 1] == 0 or (K + 1) * n[K + 1] == n[1]:
            continue
        r_star = Fraction((r + 1) * n[r + 1], n[r])
        tail = Fraction((K + 1) * n[K + 1], n[1])
        d_r = (r_star / r - tail) / (1 - tail)
        if 0 < d_r <= 1:
            discounts[r] = float(d_r)
    return discounts


def katz_observed(context: Context, counts: NGramCounts) -> dict[int, int]:
    """Counts of the words observed after `context`."""
    table = counts[len(context)]
    return {ngram[-1]: count for ngram, count in table.items() if ngram[:-1] == context}


def katz_star(context: Context, counts: NGramCounts, words: Collection[int]) -> dict[int, float]:
    """P*(w | context) of the words observed after the context, discounted to free mass for the others.

    If every word was observed, no mass is needed for others: the discounted counts are normalised to 1, and those of
    the empty context (unigrams) are not discounted. If no discount frees any mass, the total is raised by 1.
    """
    observed, discounts = katz_observed(context, counts), katz_discounts(counts[len(context)])
    all_observed = len(observed) == len(words)
    if all_observed and not context:
        discounts = {}
    discounted = {word: discounts.get(count, 1.0) * count for word, count in observed.items()}
    if all_observed:
        total = sum(discounted.values())
    elif sum(discounted.values()) < sum(observed.values()):
        total = sum(observed.values())
    else:
        total = sum(observed.values()) + 1
    return {word: value / total for word, value in discounted.items()}


def evenly(words: Collection[int], k: int) -> Array:
    """Back-off distribution of unigrams: uniform over `words`, the words without a count, (k,)."""
    shares = np.zeros(k)
    for word in words:
        shares[word] = 1.0 / len(words)
    return shares


def katz_distribution(context: Context, counts: NGramCounts, k: int, never: Collection[int]) -> Array:
    """P(. | context) by back-off, (k,).

    Args:
        context: the words before, start tokens included; at most order-1 of them.
        counts: of `katz_counts`.
        k: size of the vocabulary.
        never: ids of probability 0, the start and padding tokens.
    """
    words = [word for word in range(k) if word not in never]
    observed = katz_star(context, counts, words)
    unobserved = [word for word in words if word not in observed]
    lower = katz_distribution(context[1:], counts, k, never) if context else evenly(unobserved, k)
    result = np.zeros(k)
    for word, probability in observed.items():
        result[word] = probability
    if unobserved:
        alpha = (1.0 - sum(observed.values())) / (1.0 - sum(float(lower[word]) for word in observed))
        for word in unobserved:
            result[word] = alpha * lower[word]
    return result
