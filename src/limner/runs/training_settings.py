"""Settings of the training: optimizer, schedule, regularisation, validation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from limner.bounds import (
    Batches,
    BatchSize,
    Bounds,
    Count,
    Epochs,
    EpochsOrNone,
    LearningRate,
    Level,
    PositiveShare,
    PositiveWeight,
    Rate,
    Seed,
    Temperature,
    Weight,
)
from limner.errors import did_you_mean
from limner.metrics import METRICS, REGION_METRICS, RETRIEVAL_METRICS
from limner.settings import Settings


class SGDSettings(Settings):
    """Stochastic gradient descent with momentum, which may increase during the first epochs."""

    name: Literal["sgd"] = "sgd"
    lr: LearningRate = 0.1
    """Learning rate."""
    momentum: Rate = 0.9
    """Momentum after the first `momentum_epochs` epochs."""
    momentum_start: Rate | None = None
    """Momentum of the first epoch, increased linearly to `momentum`; None for a constant momentum."""
    momentum_epochs: Epochs = 20
    """Number of epochs over which the momentum increases."""
    nesterov: bool = False
    """Whether to use Nesterov momentum."""


class AdadeltaSettings(Settings):
    """Adadelta, Zeiler (2012)."""

    name: Literal["adadelta"] = "adadelta"
    lr: LearningRate = 1.0
    """Learning rate: factor of Adadelta's update."""
    rho: Level = 0.95
    """Decay of the running averages of squared gradients and updates."""
    eps: PositiveShare = 1e-6
    """Constant added for numerical stability."""


class AdamSettings(Settings):
    """Adam, or AdamW with decoupled weight decay."""

    name: Literal["adam", "adamw"] = "adamw"
    lr: LearningRate = 1e-3
    """Learning rate."""
    betas: tuple[Rate, Rate] = (0.9, 0.999)
    """Decays of the running averages of the gradient and its square."""
    eps: PositiveShare = 1e-8
    """Constant added for numerical stability."""


OptimizerSettings = Annotated[SGDSettings | AdadeltaSettings | AdamSettings, Field(discriminator="name")]


class ScheduleSettings(Settings):
    """Learning-rate schedule, as a factor of the optimizer's learning rate."""

    name: Literal["constant", "cosine", "linear", "exponential", "inverse_sqrt"] = "constant"
    """Shape: constant; cosine or linear decay to zero over all epochs; multiplication by `decay` every epoch; or the
    inverse square root of the step, 1 at the end of the warm-up (Vaswani et al., 2017, eq. 3)."""
    warmup_steps: Annotated[int, Bounds(0, 10**9)] = 0
    """Number of steps at the start over which the learning rate increases linearly from zero."""
    decay: PositiveShare = 0.998
    """Factor per epoch of the exponential schedule."""


class SelfCriticalSettings(Settings):
    """Self-critical sequence training, Rennie et al. (2017)."""

    reward: dict[Literal["cider", "bleu4"], Weight] = Field(default={"cider": 1.0}, min_length=1)
    """Reward of a sentence: a metric, or a weighted sum of several ('{cider: 1, bleu4: 0.5}'). CIDEr-D has the document
    frequencies of the training split; BLEU-4 of one sentence is smoothed. The end-of-sentence token counts as a word.
    """
    baseline: Literal["greedy", "mean"] = "greedy"
    """Baseline of the reward: the reward of the greedy sentence, as in the paper, or the mean reward of the other
    samples of the same image (Luo, 2020)."""
    samples: Count = 1
    """Number of sentences drawn for each image."""
    temperature: Temperature = 1.0
    """Divisor of the log-probabilities that sentences are drawn from."""
    likelihood: Weight = 0.0
    """Weight of the cross-entropy of one reference of each image, which keeps the probabilities of sentences usable for
    retrieval and scores (Wu et al., 2016; Paulus et al., 2018); 0 for the reward alone."""

    @field_validator("reward", mode="before")
    @classmethod
    def _single_metric(cls, value: Any) -> Any:  # noqa: ANN401  (arbitrary YAML)
        return {value: 1.0} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _other_samples_exist(self) -> Self:
        if self.baseline == "mean" and self.samples < 2:
            raise ValueError("baseline 'mean' needs at least 2 samples an image; set training.scst.samples=5")
        return self


class MatchingSettings(Settings):
    """Training of a model that embeds sentences and images in one space, such as `two_tower`."""

    margin: PositiveShare = 0.2
    """Margin of the hinges, a difference of cosines; without effect on the softmax."""
    negatives: Literal["hardest", "all", "softmax"] = "hardest"
    """Loss of a pair: the hinge of its hardest negative, as in VSE++; the sum of the hinges of all negatives; or the
    cross-entropy of a softmax over all pairs of the batch (van den Oord et al., 2018; Radford et al., 2021)."""
    paraphrases: Weight = 0.0
    """Weight of the cross-entropy of the sentences of an item among all sentences of the batch; needs no image."""


class TrainingSettings(Settings):
    """Settings of a training."""

    objective: Literal["cross_entropy", "scst"] = "cross_entropy"
    """Objective: the likelihood of the sentences, or the reward of the model's own sentences by self-critical sequence
    training (Rennie et al., 2017), for a model that was trained by cross-entropy (`limner train --init RUN`)."""
    scst: SelfCriticalSettings = SelfCriticalSettings()
    """Self-critical sequence training; without effect on the other objective."""
    matching: MatchingSettings = MatchingSettings()
    """Training of a model that embeds sentences and images in one space; without effect on other models."""
    epochs: Epochs = 20
    """Maximum number of epochs."""
    batch_size: BatchSize = 128
    """Number of sentences per batch; of images in the training of a model that embeds sentences and images in one
    space; of images, or source sentences, in self-critical training."""
    bucket: Batches = 50
    """Number of batches within which sentences are sorted by length; 1 for no sorting."""
    prefetch: Batches = 4
    """Number of batches prepared in advance."""
    optimizer: OptimizerSettings = AdamSettings()
    """Optimizer and its hyperparameters."""
    schedule: ScheduleSettings = ScheduleSettings()
    """Learning-rate schedule."""
    weight_decay: dict[str, Weight] = Field(default_factory=dict)
    """Weight decay by pattern of parameter names ('*bias': 0, '*': 0.01); the first match applies, 0 without one."""
    lr_factors: dict[str, Weight] = Field(default_factory=dict)
    """Factors of the learning rate by pattern of parameter names ('*factors*': 0.1); the first match applies, 1
    without one."""
    l2: Weight = 0.0
    """Coefficient of the squared norm of all weights in the loss, Mao et al. (2015), eq. 6, with the loss in nats per
    token; the paper's lambda, with the loss in bits, is 1.4427 times this."""
    label_smoothing: Rate = 0.0
    """Share of the target probability spread evenly over the vocabulary."""
    bpe_dropout: Rate = 0.0
    """Probability of leaving out a merge in the subwords of a training sentence (Provilkov et al., 2020), drawn anew
    for every sentence and epoch; validation and translation use all merges. Needs `text.level` 'bpe'."""
    source_masks: tuple[str, ...] = ()
    """Masks of source words, as in `limner diagnose --mask` (colours, last:3 or a file of words). Every epoch, a
    sentence has no mask or one of these, with equal probability (one model for each mask in Caglayan et al., 2019)."""
    clip_norm: PositiveWeight | None = None
    """Maximum norm of the gradient; larger gradients are scaled down."""
    ema_decay: Rate = 0.0
    """Decay of the exponential moving average of the weights that is validated and saved; 0 for no average."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Precision of the matrix products; 'auto' is bf16 on hardware that multiplies bf16 natively."""
    metric: str = "perplexity"
    """Metric that selects the best weights: perplexity, or a metric of decoded sentences (bleu4, cider, …); for a
    model that describes regions also `map` or `localisation_map` of the regions that it detects; for a model that only
    ranks `recall_sum`, the sum of recall@1, @5 and @10 of retrieval in both directions."""
    metrics: tuple[str, ...] = ("perplexity", "bleu4")
    """Further metrics to compute and log at every validation."""
    validation_images: Count = 200
    """Number of images that `map` and `localisation_map` are computed on at a validation, at regular intervals of the
    validation split: detection in more images can take longer than a tenth of an epoch."""
    patience: Epochs | None = None
    """Number of validations without improvement after which training stops; None for no early stopping."""
    train_on_val_epochs: EpochsOrNone = 0
    """Maximum number of further epochs on the training and validation splits together, which end when the validation
    perplexity reaches the training perplexity of the best weights (Kiros et al., 2014, section 7.2); 0 for none. A
    count-based model is refitted on both splits, whatever the number."""
    pretrained_embeddings: Path | None = None
    """File of pre-trained word embeddings in the format of word2vec, GloVe or fastText."""
    pretrained_image_encoder: Path | None = None
    """Run directory of any model with a convnet on the same pixels or feature maps: the image encoder starts from its
    weights."""
    validate_every: Epochs = 1
    """Number of epochs between validations."""
    save_every: Annotated[int, Bounds(1, 10**9)] = 500
    """Number of steps between saved states; the state is also saved after every epoch."""
    seed: Seed = 1
    """Seed of the initial weights, dropout and the order of the examples."""

    @field_validator("metric", "metrics")
    @classmethod
    def _metrics_exist(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        for name in (value,) if isinstance(value, str) else value:
            if name not in (known := ("perplexity", *REGION_METRICS, *RETRIEVAL_METRICS, *METRICS)):
                expected = f"expected one of {', '.join(known)}{did_you_mean(name, known)}"
                raise ValueError(f"no metric '{name}': {expected}")
        return value

    @model_validator(mode="after")
    def _fits_objective(self) -> Self:
        if self.objective == "scst":
            if self.metric == "perplexity":
                raise ValueError(
                    "objective 'scst' maximises a metric of generated sentences, and perplexity gets worse: set "
                    "training.metric=cider (or another metric of sentences)"
                )
            unused = [name for name in ("label_smoothing", "bpe_dropout", "train_on_val_epochs") if getattr(self, name)]
            if unused:
                raise ValueError(f"{unused[0]} has no effect on objective 'scst'; set training.{unused[0]}=0")
        return self

    @model_validator(mode="after")
    def _learning_rate_above_zero_on_both_splits(self) -> Self:
        if self.train_on_val_epochs and self.schedule.name in ("cosine", "linear"):
            raise ValueError(
                f"train_on_val_epochs={self.train_on_val_epochs} needs the schedule 'constant' or 'exponential', found "
                f"'{self.schedule.name}', whose learning rate is zero at the end; change the schedule, or set "
                "train_on_val_epochs=0"
            )
        return self
