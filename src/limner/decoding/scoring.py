"""Log-probability of given sentences, each with its own image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from limner.data.batching import ONE_PROCESS, Shards, prefetch
from limner.data.dataset import Examples
from limner.data.examples import Batch
from limner.decoding.torch_models import mean_log_probs
from limner.errors import SettingsError
from limner.layers.functional import precise, require_numbers
from limner.metrics import Score, perplexity
from limner.models.phrase_based import PhraseBased
from limner.models.protocols import Model, Output, device_of, evaluation_mode
from limner.progress import Progress
from limner.text.labels import LABEL_LANGUAGES
from limner.text.vocab import SPECIAL_TOKENS

TOKENS_PER_BATCH = 1 << 13
"""Maximum number of tokens of a batch, padding included, which bounds the memory of the logits."""


class SentenceScore(NamedTuple):
    """Probability of a sentence given an image."""

    log_prob: float
    """Natural logarithm of the probability, end-of-sentence token included."""
    tokens: int
    """Number of tokens, end-of-sentence token included."""
    perplexity: float
    """Perplexity of the sentence, Mao et al. (2015), eq. 5."""
    unknown: int = 0
    """Number of tokens that are not in the vocabulary and count as <unk>."""


class SentenceScores(NamedTuple):
    """Scores of the N sentences of `Examples`, in their order."""

    log_probs: Tensor  # (N,): natural logarithm over the counted tokens
    tokens: Tensor  # (N,): number of counted tokens; 0 for sentences left out
    skip_words: int = 0
    count_eos: bool = True
    vocabulary: int = 0  # number of entries; 0 for labels
    words: str = ""  # signature of the text settings, on which the tokens and their number depend
    units: str = ""  # units of the vocabulary, unless they are the words
    unknown: float = 0.0  # share of <unk> in the counted tokens, end-of-sentence tokens excluded
    models: int = 1  # size of the ensemble

    @property
    def perplexity(self) -> Score:
        """Perplexity over all counted tokens."""
        parts = []
        if self.skip_words:
            short = int((self.tokens == 0).sum())
            parts += [f"from word:{self.skip_words + 1}", f"left out:{short} of under {self.skip_words + 3} words"]
        if self.vocabulary:
            units = [f"units:{self.units}"] if self.units else []
            parts += [self.words, *units, f"vocabulary:{self.vocabulary}", f"unk:{100 * self.unknown:.2f}%"]
        if self.models > 1:
            parts.append(f"models:{self.models}")
        return perplexity(
            float(self.log_probs.double().sum()), int(self.tokens.sum()), "|".join(parts), count_eos=self.count_eos
        )


@torch.inference_mode()
def score_examples(
    model: Model,
    examples: Examples,
    batch_size: int = 256,
    *,
    further: Sequence[Model] = (),
    skip_words: int = 0,
    shards: Shards = ONE_PROCESS,
    on_progress: Progress | None = None,
) -> SentenceScores:
    """Compute the log-probability of every sentence given its image or source sentence.

    The models are in evaluation mode meanwhile, and return to their modes afterwards. The end-of-sentence token counts,
    except after labels, whose number the input determines.

    Args:
        model: any model.
        examples: sentences with their images and source sentences.
        batch_size: maximum number of sentences a batch; it changes no result.
        further: the other models of an ensemble, whose probabilities of a token are averaged with the model's.
        skip_words: number of leading tokens that are not counted, see `counted_tokens`.
        shards: division of the batches among processes; each returns the scores of all sentences.
        on_progress: called with the number of sentences done and their total, of one process.

    Raises:
        RunError: a log-probability is NaN.
        SettingsError: the model gives no probabilities.
    """
    models = [model, *further]
    _require_probabilities(models)
    device, count_eos = device_of(model), examples.target.lang not in LABEL_LANGUAGES
    log_probs, counts = torch.zeros(len(examples)), torch.zeros(2, len(examples), dtype=torch.long)
    batches = [
        rows for batch in examples.batches_by_length(batch_size) for rows in _bound_tokens(batch, examples.targets)
    ]
    done, local_batches, scored = 0, shards.local(batches), []
    with evaluation_mode(models):
        for rows, batch in zip(local_batches, prefetch(examples.batch, local_batches, 4), strict=True):
            mask = counted_tokens(batch, skip_words, count_eos=count_eos)
            moved = batch.to(device)
            counted = replace(moved, target_mask=mask.to(device))
            output = Output(mean_log_probs([member(moved).logits for member in models])) if further else model(moved)
            unknown = mask & (batch.target_out == SPECIAL_TOKENS.unk)
            scored.append((sentence_log_probs(output, counted).cpu(), torch.stack([mask, unknown]).sum(2)))
            done += len(rows)
            if on_progress is not None:
                on_progress(done, len(examples))
    for rows, (values, numbers) in zip(batches, shards.gather(scored), strict=True):
        log_probs[rows], counts[:, rows] = values, numbers
    require_numbers(log_probs, "log-probabilities")
    tokens, unknown = counts
    if not count_eos:
        return SentenceScores(log_probs, tokens, skip_words, count_eos, models=len(models))
    share = float(unknown.sum() / (tokens.sum() - (tokens > 0).sum()).clamp(min=1))
    size, text = len(examples.target.tokenizer), examples.target.tokenizer.settings
    words, units = text.signature, text.units
    return SentenceScores(log_probs, tokens, skip_words, count_eos, size, words, units, share, len(models))


def _require_probabilities(models: Sequence[Model]) -> None:
    """Check that all models give probabilities of sentences; SettingsError if not."""
    if any(isinstance(model, PhraseBased) for model in models):
        raise SettingsError(
            "expected a model that gives probabilities of sentences, got one that only searches for translations: use "
            "'limner translate' or 'limner evaluate', or train a neural model"
        )


def counted_tokens(batch: Batch, skip_words: int, *, count_eos: bool = True) -> Tensor:
    """Return the mask of the tokens that perplexity counts, (B, T) bool.

    Args:
        batch: sentences.
        skip_words: 0 counts all tokens. With C > 0, as in Kiros et al. (2014), section 7.2, counting starts at token
            C + 1, where every model has a full context, and sentences of fewer than C + 3 tokens are left out.
        count_eos: whether end-of-sentence tokens are counted.
    """
    mask = batch.target_mask if count_eos else batch.target_mask & (batch.target_out != SPECIAL_TOKENS.eos)
    if not skip_words:
        return mask
    long_enough = batch.target_mask.sum(1, keepdim=True) - 1 >= skip_words + 3  # without the end-of-sentence token
    position = torch.arange(batch.target_mask.shape[1], device=batch.target_mask.device)
    return mask & long_enough & (position >= skip_words)


def _bound_tokens(rows: Sequence[int], targets: Sequence[Sequence[int]]) -> Iterator[Sequence[int]]:
    """Cut a batch into parts of at most `TOKENS_PER_BATCH` tokens, padding included."""
    size = max(1, TOKENS_PER_BATCH // (1 + max(len(targets[row]) for row in rows)))
    for begin in range(0, len(rows), size):
        yield rows[begin : begin + size]


def sentence_log_probs(output: Output, batch: Batch) -> Tensor:
    """Compute the natural log-probability of each sentence over the tokens of `batch.target_mask`, (B,)."""
    return (_token_log_probs(output, batch) * batch.target_mask).sum(1)


def _token_log_probs(output: Output, batch: Batch) -> Tensor:
    log_probs = -cross_entropy(precise(output.logits.flatten(0, 1)), batch.target_out.flatten(), reduction="none")
    return log_probs.view(batch.target_out.shape)


@torch.inference_mode()
def token_log_probs(model: Model, examples: Examples) -> Tensor:
    """Compute the natural log-probability of each token of N sentences of the same T tokens, with `</s>`, (N, T)."""
    _require_probabilities([model])
    device, count = device_of(model), max(1, TOKENS_PER_BATCH // (1 + len(examples.targets[0])))
    parts = []
    with evaluation_mode([model]):
        for begin in range(0, len(examples), count):
            batch = examples.batch(range(begin, min(begin + count, len(examples)))).to(device)
            parts.append(_token_log_probs(model(batch), batch).cpu())
    log_probs = torch.cat(parts)
    require_numbers(log_probs, "log-probabilities")
    return log_probs
