"""Back-off n-grams with Good-Turing discounting: Katz (1987), the baselines GT2 and GT3 of Kiros et al. (2014).

Shapes: B batch or hypotheses, T target length, V vocabulary, C contexts and N n-grams of one order, K cutoff.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import pad

from limner.bounds import Count, Order
from limner.data.examples import Batch
from limner.errors import RunError
from limner.models.protocols import EXCLUDED, ConditionalLMSettings, ModelInputs, Output, require_words
from limner.text.vocab import SPECIAL_TOKENS

logger = logging.getLogger(__name__)

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class NGramSettings(ConditionalLMSettings):
    """Settings of the n-gram model."""

    has_gradients: ClassVar = False
    maximises_likelihood: ClassVar = False
    name: Literal["ngram"] = "ngram"
    order: Order = 3
    """Number of tokens of an n-gram: 2 for GT2, 3 for GT3; the paper reports no gain above 3."""
    cutoff: Count = 5
    """Largest count that is discounted; 1 disables discounting."""


class Table(NamedTuple):
    """Observed n-grams of one order: N n-grams after C distinct contexts.

    A context is identified by its index in `contexts`. Its key combines its first word with the index of the context
    without that word in the table of the order below (0 if that is empty): index * V + first word.
    """

    contexts: Tensor  # (C,) keys, ascending
    first: Tensor  # (C + 1,): the observed words after context c are words[first[c]] … words[first[c + 1] - 1]
    words: Tensor  # (N,) token ids of the observed words, ascending within a context
    log_probs: Tensor  # (N,) natural logarithm of their probabilities
    log_backoffs: Tensor  # (C,) log alpha: added to the log-probability of every other word after the shorter context

    def check(self, order: int, vocab_size: int) -> None:
        """Check that the tensors of the table of an order fit one another and the vocabulary; or RunError."""
        contexts, first, words, log_probs, log_backoffs = self
        fits = (
            all(values.ndim == 1 for values in self)
            and len(first) == len(contexts) + 1 == len(log_backoffs) + 1
            and int(first[0]) == 0
            and bool((first.diff() >= 0).all())
            and int(first[-1]) == len(words) == len(log_probs)
            and bool(((words >= 0) & (words < vocab_size)).all())
        )
        if not fits:
            shapes = ", ".join(f"{name}_{order} {tuple(values.shape)}" for name, values in self._asdict().items())
            raise RunError(
                f"n-grams: the tables of order {order} do not fit one another and a vocabulary of {vocab_size} tokens "
                f"({shapes}); restore the model.safetensors of the same training"
            )


class NGram(nn.Module):
    """Back-off n-gram model of Katz (1987) with Good-Turing discounting.

    With the count c(.) of an n-gram, the context h, h' without its first word, n_r the number of distinct n-grams of
    the order with count r, and the cutoff K:

        P(w | h) = d_c c(h w) / c(h)                           if h w was observed, c = c(h w)                (1)
                 = alpha(h) P(w | h')                          otherwise                                      (2)
        d_r = (r*/r - (K+1) n_{K+1}/n_1) / (1 - (K+1) n_{K+1}/n_1)  for r <= K, 1 above                       (3)
        r* = (r+1) n_{r+1} / n_r                                                                              (4)
        alpha(h) = (1 - sum P(w | h)) / (1 - sum P(w | h'))    sums over the words observed after h           (5)

    The model has no parameters and no gradients; `fit` estimates it from counts. Before that, all words have the same
    probability. The image is not used. `order` - 1 tokens <s> precede a sentence, and </s> counts as a word.

    Departures from the papers (Kiros et al. state only "Good-Turing discounting"); with them, every context sums to 1
    and every word except <pad> and <s> has a positive probability:

    - a d_r outside (0, 1] is set to 1, and so is a d_r with n_1, n_r or the denominator equal to 0;
    - unigrams distribute the discounted mass evenly over the unobserved words; without such words they are not
      discounted;
    - if no word observed after a context is discounted, the total count c(h) of the context is increased by 1;
    - if every word was observed after a context, its probabilities are normalised;
    - discounts are computed from the counts of each order, and n-grams with count 1 are not removed.

    Buffers: the unigram log-probabilities `log_probs_1` (V,), and for each order n >= 2 a `Table` as `contexts_n`,
    `first_n`, `words_n`, `log_probs_n` and `log_backoffs_n`.
    """

    log_probs_1: Tensor

    Settings: ClassVar = NGramSettings
    uses_image = False

    def __init__(self, settings: NGramSettings, inputs: ModelInputs) -> None:
        super().__init__()
        self.settings, self.vocab_size = settings, inputs.vocab_size
        self.word_count = self.vocab_size - 2  # all tokens except <pad> and <s>
        self.register_buffer("log_probs_1", _log_row(np.full(self.vocab_size, 1 / self.word_count)))
        empty, none = torch.zeros(0, dtype=torch.long), torch.zeros(0)
        for order in self._orders:
            self._register(order, Table(empty, torch.zeros(1, dtype=torch.long), empty, none, none))

    @property
    def _orders(self) -> range:
        """Orders of the tables, from 2."""
        return range(2, self.settings.order + 1)

    def _register(self, order: int, table: Table) -> None:
        """Set the buffers of the table of one order."""
        for name, values in table._asdict().items():
            self.register_buffer(f"{name}_{order}", values.clone())

    def _table(self, order: int) -> Table:
        """Return the table of one order."""
        return Table(*(getattr(self, f"{name}_{order}") for name in Table._fields))

    def fit(self, sentences: Sequence[Sequence[int]]) -> None:
        """Estimate the probabilities of all orders from counts, anew; TrainingError for no sentences or wrong ids."""
        like, vocab, cutoff = self.log_probs_1, self.vocab_size, self.settings.cutoff
        stream = self._stream(sentences)
        positions = np.flatnonzero(stream != SPECIAL_TOKENS.bos)  # positions of the counted words
        probs = self._unigrams(stream[positions])
        self.log_probs_1 = _log_row(probs).to(like)
        grams = np.arange(vocab)  # n-grams whose probabilities are `probs`, as context * V + word
        context = np.zeros_like(positions)  # index of the context of each position
        for order in self._orders:
            contexts, context = np.unique(context * vocab + stream[positions - (order - 1)], return_inverse=True)
            shorter_grams = grams
            grams, counts = np.unique(context * vocab + stream[positions], return_counts=True)
            gram_contexts, words = np.divmod(grams, vocab)
            shorter = np.searchsorted(shorter_grams, contexts[gram_contexts] // vocab * vocab + words)
            discounts = good_turing(counts, cutoff)
            probs, backoffs = back_off(gram_contexts, counts, probs[shorter], discounts, self.word_count)
            first = np.searchsorted(gram_contexts, np.arange(len(contexts) + 1))
            logs = (torch.from_numpy(np.log(values)).to(like) for values in (probs, backoffs))
            indices = (torch.from_numpy(values).to(like.device) for values in (contexts, first, words))
            self._register(order, Table(*indices, *logs))
            logger.info(
                "order %d: %d contexts, %d n-grams, discounts of the counts 1 to %d: %s",
                *(order, len(contexts), len(grams), cutoff, discounts[1:-1].round(3).tolist()),
            )

    def _stream(self, sentences: Sequence[Sequence[int]]) -> Ints:
        """Concatenate all sentences, each after `order` - 1 tokens <s> and before </s>."""
        require_words(sentences, self.vocab_size, "n-grams")
        begin, end = [SPECIAL_TOKENS.bos] * (self.settings.order - 1), [SPECIAL_TOKENS.eos]
        return np.fromiter(chain.from_iterable([*begin, *sentence, *end] for sentence in sentences), np.int64)

    def _unigrams(self, words: Ints) -> Floats:
        """Compute the probability of each word, (V,); unobserved words back off to the uniform distribution."""
        observed, counts = np.unique(words, return_counts=True)
        cutoff = self.settings.cutoff if len(observed) < self.word_count else 1
        contexts, lower = np.zeros_like(observed), np.full(len(observed), 1 / self.word_count)
        probs, backoffs = back_off(contexts, counts, lower, good_turing(counts, cutoff), self.word_count)
        row = np.full(self.vocab_size, backoffs[0] / self.word_count)
        row[observed] = probs
        return row

    def encode(self, batch: Batch) -> Tensor:
        """Return a tensor (B,) for the number and the device of the examples; the image is not used."""
        return batch.image.present

    def start(self, memory: Tensor) -> Tensor:
        """Return a context of <s> only, (B, order - 1)."""
        shape = (memory.shape[0], self.settings.order - 1)
        return memory.new_full(shape, SPECIAL_TOKENS.bos, dtype=torch.long)

    def step(self, tokens: Tensor, memory: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the log-probabilities (B, V) after one more token (B,) of each hypothesis, and their context."""
        context = torch.cat((state, tokens[:, None]), 1)[:, 1:]
        return self._log_probs(context), context  # eqs. 1 and 2

    def forward(self, batch: Batch) -> Output:
        """Compute the log-probabilities (B, T, V) of all positions from a sliding window of contexts."""
        length = self.settings.order - 1
        padded = pad(batch.target_in, (length, 0), value=SPECIAL_TOKENS.bos)
        contexts = padded.unfold(1, length + 1, 1)[..., 1:]  # (B, T, order - 1)
        return Output(self._log_probs(contexts.flatten(0, 1)).view(*batch.target_in.shape, -1))  # eqs. 1 and 2

    def _log_probs(self, tokens: Tensor) -> Tensor:
        """Compute the log-probability (R, V) of every token after contexts (R, order - 1) (eqs. 1 and 2).

        Starting with the unigrams, each order adds log alpha of its context to all tokens, and then overwrites the
        tokens observed after that context.
        """
        log_probs = self.log_probs_1.repeat(len(tokens), 1)
        context = tokens.new_zeros(len(tokens))  # index of the context in the table of the order below
        observed = torch.ones_like(context, dtype=torch.bool)
        for order in self._orders:
            table = self._table(order)
            if len(table.contexts) == 0:
                break
            keys = context * self.vocab_size + tokens[:, 1 - order]
            context = torch.searchsorted(table.contexts, keys).clamp(max=len(table.contexts) - 1)
            observed = observed & (table.contexts[context] == keys)
            log_probs += (table.log_backoffs[context] * observed)[:, None]  # eq. 2
            first = table.first[context]
            counts = (table.first[context + 1] - first) * observed
            row = torch.arange(len(tokens), device=tokens.device).repeat_interleave(counts)
            # Index in the table: `first` of the row, plus the position within the row.
            index = torch.arange(len(row), device=tokens.device) + (first - counts.cumsum(0) + counts)[row]
            log_probs[row, table.words[index]] = table.log_probs[index]  # eq. 1
        return log_probs

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> object:
        """Load tables of any size, see `nn.Module`; RunError if they do not fit one another or the vocabulary."""
        unigrams = state_dict.get("log_probs_1", self.log_probs_1)
        if unigrams.shape != self.log_probs_1.shape:
            raise RunError(
                f"n-grams: log_probs_1 has {len(unigrams)} tokens, the vocabulary has {self.vocab_size}; "
                "restore the model.safetensors of the same training"
            )
        for order in self._orders:
            names = [f"{name}_{order}" for name in Table._fields]
            if all(name in state_dict for name in names):  # missing tensors are reported below
                Table(*(state_dict[name] for name in names)).check(order, self.vocab_size)
        for name, buffer in self.named_buffers():
            if name in state_dict:
                setattr(self, name, buffer.new_empty(state_dict[name].shape))
        return super().load_state_dict(state_dict, strict, assign)


def _log_row(probs: Floats) -> Tensor:
    """Convert unigram probabilities (V,) to logits in float32, with `EXCLUDED` for <pad> and <s>."""
    row = torch.from_numpy(np.log(probs)).float()
    row[[SPECIAL_TOKENS.pad, SPECIAL_TOKENS.bos]] = EXCLUDED
    return row


def good_turing(counts: Ints, cutoff: int) -> Floats:
    """Compute the discounts d_r of Katz (1987) (eqs. 3 and 4 of `NGram`) from the counts of N n-grams, (K + 2,).

    The last discount is for all counts above the cutoff K, and is 1; a discount that is not defined is 1.
    """
    discounts = np.ones(cutoff + 2)
    n = np.bincount(np.minimum(counts, cutoff + 2), minlength=cutoff + 2).tolist()  # n_r
    common = (cutoff + 1) * n[cutoff + 1] / n[1] if n[1] else 1.0  # (K+1) n_{K+1} / n_1
    for r in range(1, cutoff + 1):
        if n[r] and common != 1:
            discount = ((r + 1) * n[r + 1] / (r * n[r]) - common) / (1 - common)  # eq. 3, with eq. 4
            discounts[r] = discount if 0 < discount <= 1 else 1
    return discounts


def back_off(contexts: Ints, counts: Ints, lower: Floats, discounts: Floats, word_count: int) -> tuple[Floats, Floats]:
    """Compute the probabilities (N,) of n-grams and the back-off weights (C,) of their contexts, eqs. 1 and 5.

    Args:
        contexts: index of the context of each n-gram, ascending, (N,).
        counts: count of each n-gram, (N,).
        lower: probability of the last word of each n-gram after the context without its first word, (N,).
        discounts: discount by count, (K + 2,).
        word_count: number of words that share the probability of a context; where all were observed, alpha is 1.
    """
    discount = discounts[np.minimum(counts, len(discounts) - 1)]
    discounted = discount * counts
    complete = np.bincount(contexts) == word_count
    increment = np.bincount(contexts, discount < 1) == 0  # no word of the context is discounted
    totals = np.where(complete, np.bincount(contexts, discounted), np.bincount(contexts, counts) + increment)
    probs = discounted / totals[contexts]  # eq. 1
    left, lower_left = (1 - np.bincount(contexts, values) for values in (probs, lower))
    return probs, np.divide(left, lower_left, out=np.ones_like(left), where=~complete)  # eq. 5
