"""Self-critical sequence training, Rennie et al. (2017)."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from limner.data.batching import epoch_order
from limner.data.examples import Batch, Example, collate, with_targets
from limner.decoding.selection import SampleRecorder, banned_tokens
from limner.decoding.sentence import Sentence
from limner.decoding.settings import DecodingSettings, SampleSettings
from limner.decoding.torch_models import beam_search
from limner.metrics.caption import CiderD
from limner.metrics.translation import bleu_statistics, sentence_bleu
from limner.models.protocols import Mean, Model
from limner.text.tokenizer import Tokenizer
from limner.text.vocab import SPECIAL_TOKEN_STRINGS, SPECIAL_TOKENS
from limner.training.context import TrainingContext
from limner.training.losses import loss_terms, weighted_loss
from limner.training.processes import StepLoss

EOS = SPECIAL_TOKEN_STRINGS[SPECIAL_TOKENS.eos]


class Reward:
    """Weighted sum of metrics of a generated sentence and the references of its item.

    A complete sentence ends with the end-of-sentence token, and so does every reference, also where the document
    frequencies are counted: without it, sentences that stop after "in a" or "with the" would lose nothing. A sentence
    that was cut off has no end.
    """

    def __init__(
        self,
        weights: Mapping[Literal["cider", "bleu4"], float],
        tokenizer: Tokenizer,
        references: Sequence[Sequence[str]],
    ) -> None:
        """Count the document frequencies of the references of each item (CIDEr of 1.0: 100 in `METRICS`)."""
        self.weights, self.tokenizer = weights, tokenizer
        self.references = [
            [[*tokenizer.words(text), EOS] for text in item_references if text.strip()]
            for item_references in references
        ]
        self.cider = CiderD(self.references) if "cider" in weights else None

    def __call__(self, items: Sequence[int], hypotheses: Sequence[Sentence]) -> list[float]:
        """Compute the reward of each hypothesis for the item of that index."""
        sentences = [
            [*self.tokenizer.decode(hypothesis.tokens).split(), *([EOS] if hypothesis.ended else [])]
            for hypothesis in hypotheses
        ]
        rewards = [0.0] * len(items)
        for metric, weight in self.weights.items():
            if metric == "cider":
                assert self.cider is not None
                values = [self.cider.score(*pair) for pair in zip(items, sentences, strict=True)]
            else:
                references = [[" ".join(tokens) for tokens in self.references[item]] for item in items]
                statistics = bleu_statistics([" ".join(sentence) for sentence in sentences], references)
                values = [float(value) / 100 for value in sentence_bleu(statistics)]
            rewards = [reward + weight * value for reward, value in zip(rewards, values, strict=True)]
        return rewards


logger = logging.getLogger(__name__)


class SelfCritical:
    """Policy gradient with the reward of the greedy sentence as the baseline, Rennie et al. (2017), eqs. 5-10.

    The objective is the expected negative reward L = -E[r(w^s)] of a sentence w^s drawn from the model (eq. 3). Its
    gradient is estimated from S samples of each of B images as the gradient of

        -1/(B S) sum_b sum_s (r(w^s_b) - r(w^g_b)) log p(w^s_b),   log p(w) = sum_t log p(w_t | w_1 … w_t-1),

    where w^g is the greedy sentence, or with `baseline: mean` the mean reward of the other samples of the image (Luo,
    2020) takes its place. The sum over the tokens is not divided by the length, so the estimate is unbiased.

    Sentences are drawn and decoded by the settings of `decoding` (maximum and minimum length, banned tokens) without
    dropout. Their log-probabilities are then computed by `forward`, again without dropout and renormalised over the
    tokens that may be generated: the distribution that they were drawn from. A sentence that was cut off at the maximum
    length has no factor for its end. An auxiliary loss of the model has no part in this objective.

    With `likelihood` gamma, gamma times the cross-entropy of one reference of each image is added: mixed training as in
    Wu et al. (2016, GNMT, eq. 9) and Paulus et al. (2018, eq. 16). The reference is drawn anew in every epoch.

    The logged loss is the negative mean reward of the samples.
    """

    def __init__(self, run: TrainingContext) -> None:
        """Collect the references of the training split and their document frequencies."""
        self.run, self.settings = run, run.settings.scst
        if "init" not in run.trained.config.provenance:
            logger.warning(
                "training.objective=scst starts from random weights; train by cross-entropy first and name that run: "
                "--init RUN"
            )
        self.inputs = [
            generation_input
            for generation_input in run.training_set.generation_inputs()
            if any(map(str.strip, generation_input.references))
        ]
        source = run.training_set.source
        self.sources = [
            None if source is None else source.tokenizer.encode(generation_input.source or "")
            for generation_input in self.inputs
        ]
        self.reward = Reward(
            self.settings.reward,
            run.trained.tokenizer,
            [generation_input.references for generation_input in self.inputs],
        )
        self.rows = {self._id(row): row for row in range(len(self.inputs))}

    def _id(self, row: int) -> str:
        """Return a unique id: every source sentence of an item has separate random numbers."""
        return self.inputs[row].item.id if self.sources[row] is None else f"{self.inputs[row].item.id}#{row}"

    def epoch_batches(self, epoch: int) -> list[list[int]]:
        """Draw the batches of an epoch: every image, or source sentence, once."""
        settings = self.run.settings
        lengths = [len(source or ()) for source in self.sources]
        return epoch_order(lengths, settings.batch_size, settings.bucket, settings.seed, epoch)

    def batch(self, rows: Sequence[int], epoch: int = 0) -> Batch:
        """Collate images and source sentences, with a reference of each as the target of the mixed loss."""
        features = self.run.training_set.features
        items = [self.inputs[row].item for row in rows]
        images = features.take(items) if features is not None else [None] * len(items)
        return collate(
            [
                Example(self._id(row), self._reference(row, epoch), self.sources[row], image)
                for row, image in zip(rows, images, strict=True)
            ]
        )

    def _reference(self, row: int, epoch: int) -> Sequence[int]:
        """Draw a reference by the seed, the epoch and the image; empty without a mixed loss."""
        if not self.settings.likelihood:
            return ()
        references = [text for text in self.inputs[row].references if text.strip()]
        chance = np.random.default_rng([self.run.settings.seed, epoch, row])
        return self.run.trained.tokenizer.encode(references[int(chance.integers(len(references)))])

    def loss(self, batch: Batch, epoch: int) -> StepLoss:
        """Draw sentences, compute their rewards and the loss whose gradient is the estimate."""
        assert self.run.optimization is not None
        model = self.run.trained.model
        model.eval()
        settings = self.decoding(epoch)
        sentences = self._decode(model, batch, settings)
        rewards = self._rewards(batch, sentences)
        advantages = torch.tensor(self._advantages(rewards), dtype=torch.float64).flatten()
        first = int(self.settings.baseline == "greedy")  # the samples follow the greedy sentence
        drawn = [hypothesis for hypotheses in sentences for hypothesis in hypotheses[first:]]
        rows = [row for row, hypotheses in enumerate(sentences) for _ in hypotheses[first:]]
        sampled = sampled_batch(batch, rows, drawn)
        with torch.backends.cudnn.flags(enabled=False):  # no gradient of recurrent layers in evaluation mode
            logits = self.run.optimization.model(sampled).logits
        loss = policy_loss(logits, sampled, advantages.float(), settings)
        reward = torch.tensor([values[first:] for values in rewards], dtype=torch.float64)
        terms = (loss, *self._likelihood(batch))
        return StepLoss(terms, int(sampled.target_mask.sum()), Mean(-reward.sum(), reward.numel()))

    def _likelihood(self, batch: Batch) -> list[Mean]:
        """Compute the weighted cross-entropy of the references of a batch; no terms without a mixed loss."""
        weight = self.settings.likelihood
        if not weight:
            return []
        assert self.run.optimization is not None
        self.run.trained.model.train()
        terms = loss_terms(self.run.optimization.model(batch), batch)
        return [Mean(weight * term.total, term.number) for term in terms]

    def decoding(self, epoch: int) -> DecodingSettings:
        """Return the settings of decoding in an epoch: every epoch has separate random numbers.

        The greedy sentence, if it is the baseline, is decoded with the samples as the first of them, which takes less
        time than a separate search.
        """
        seed = np.random.SeedSequence([self.run.settings.seed, epoch]).generate_state(1)
        greedy = self.settings.baseline == "greedy"
        sample = SampleSettings(temperature=self.settings.temperature, seed=int(seed[0]), greedy_first=greedy)
        count = self.settings.samples + greedy
        assert self.run.optimization is not None
        is_bf16 = self.run.optimization.fabric.strategy.precision.precision == "bf16-mixed"
        precision = "bf16" if is_bf16 else "fp32"  # so that sentences are drawn from the distribution that is trained
        changes = {"beam_size": count, "n_best": count, "sample": sample, "precision": precision}
        changes["no_repeat_ngram_size"] = 0  # no part of the distribution that is trained
        return self.run.trained.recipe.decoding.model_copy(update=changes)

    def _decode(self, model: Model, batch: Batch, settings: DecodingSettings) -> list[list[Sentence]]:
        """Decode the greedy sentence, if it is the baseline, and the samples of each example."""
        recorder = SampleRecorder(len(batch), settings.beam_size)
        beam_search([model], batch, settings, trace=recorder)
        return recorder.hypotheses()

    def _rewards(self, batch: Batch, sentences: Sequence[Sequence[Sentence]]) -> list[list[float]]:
        """Compute the reward of each sentence of each example."""
        items = [self.rows[id_] for id_, hypotheses in zip(batch.ids, sentences, strict=True) for _ in hypotheses]
        values = iter(self.reward(items, [hypothesis for hypotheses in sentences for hypothesis in hypotheses]))
        return [[next(values) for _ in hypotheses] for hypotheses in sentences]

    def _advantages(self, rewards: Sequence[Sequence[float]]) -> list[list[float]]:
        """Subtract the baseline from the rewards of the samples of each example."""
        if self.settings.baseline == "greedy":
            return [[reward - greedy for reward in samples] for greedy, *samples in rewards]
        return [[reward - (sum(samples) - reward) / (len(samples) - 1) for reward in samples] for samples in rewards]


def sampled_batch(batch: Batch, rows: Sequence[int], hypotheses: Sequence[Sentence]) -> Batch:
    """Collate N generated sentences with the examples `rows` of a batch; the ends of cut sentences are masked."""
    sampled = with_targets(batch, rows, [hypothesis.tokens for hypothesis in hypotheses])
    lengths = torch.tensor(
        [len(hypothesis.tokens) + hypothesis.ended for hypothesis in hypotheses], device=sampled.target_mask.device
    )
    longest = max(1, int(lengths.max()))  # no sentence has a factor for the end where the longest was cut off
    sampled.target_in, sampled.target_out = sampled.target_in[:, :longest], sampled.target_out[:, :longest]
    sampled.target_mask = torch.arange(longest, device=lengths.device) < lengths[:, None]
    return sampled


def policy_loss(logits: Tensor, batch: Batch, advantages: Tensor, settings: DecodingSettings) -> Mean:
    """Compute -1/N sum_n A_n log p(w_n), the loss whose gradient is the policy gradient, as a mean over the sentences.

    Args:
        logits: logits of all positions of N sentences, (N, T, V).
        batch: the sentences, as `sampled_batch` collates them.
        advantages: reward of each sentence minus its baseline, (N,).
        settings: settings by which the sentences were drawn.
    """
    if settings.min_length:
        logits = logits.clone()
        logits[:, : settings.min_length, SPECIAL_TOKENS.eos] = -math.inf
    if settings.sample is not None and settings.sample.temperature != 1:
        logits = logits / settings.sample.temperature
    weights = advantages.to(logits.device)[:, None] * batch.target_mask
    return Mean(weighted_loss(logits, batch, weights, excluded=banned_tokens(settings)), len(advantages))
