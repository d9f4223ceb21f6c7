"""Settings of training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from limner.metrics import METRICS
from limner.settings import Settings


class SGDSettings(Settings):
    """Stochastic gradient descent whose momentum may rise over the first epochs."""

    name: Literal["sgd"] = "sgd"
    lr: float = Field(default=0.1, gt=0, le=1e4)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    momentum_start: float | None = Field(default=None, ge=0, lt=1)
    """Momentum of the first epoch; it rises linearly to `momentum` over `momentum_epochs`."""
    momentum_epochs: int = Field(default=20, ge=1)
    nesterov: bool = False


class AdadeltaSettings(Settings):
    """Adadelta, Zeiler (2012)."""

    name: Literal["adadelta"] = "adadelta"
    lr: float = Field(default=1.0, gt=0, le=1e4)
    rho: float = Field(default=0.95, gt=0, lt=1)
    eps: float = Field(default=1e-6, gt=0)


class AdamSettings(Settings):
    """Adam, and with decoupled weight decay AdamW."""

    name: Literal["adam", "adamw"] = "adamw"
    lr: float = Field(default=1e-3, gt=0, le=1e4)
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = Field(default=1e-8, gt=0)


OptimizerSettings = Annotated[SGDSettings | AdadeltaSettings | AdamSettings, Field(discriminator="name")]


class ScheduleSettings(Settings):
    """Learning rate over time, as a factor of the optimizer's."""

    name: Literal["constant", "cosine", "linear", "exponential"] = "constant"
    """Constant; down to zero as a cosine or a line over all epochs; or times `decay` after every epoch."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps over which the rate rises linearly from zero first."""
    decay: float = Field(default=0.998, gt=0, le=1)


class TrainingSettings(Settings):
    """How a model learns."""

    epochs: int = Field(default=20, ge=1)
    batch_size: int = Field(default=128, ge=1)
    bucket: int = Field(default=50, ge=1)
    """How many batches are sorted by sentence length together."""
    prefetch: int = Field(default=4, ge=1)
    """Batches made ahead of the training."""
    optimizer: OptimizerSettings = AdamSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    weight_decay: dict[str, float] = Field(default_factory=dict)
    """Weight decay by pattern of parameter names ('*bias': 0, '*': 0.01); the first that fits counts."""
    rates: dict[str, float] = Field(default_factory=dict)
    """Learning rates by pattern of parameter names, as factors of the optimizer's ('*factors*': 0.1); the first that
    fits counts, 1 for the others."""
    l2: float = Field(default=0.0, ge=0)
    """The regularisation of Mao et al. (2015), eq. 6: this times the squared norm of all weights is added to
    the loss (in nats a word; the paper's lambda, against bits, is 1.4427 times this)."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    clip_norm: float | None = Field(default=None, gt=0)
    """Gradients of a larger norm are scaled down to this one."""
    average: float = Field(default=0.0, ge=0, lt=1)
    """Decay of a running average of the weights, which is then what is validated and kept; 0 for none."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Arithmetic; auto takes bf16 where the hardware multiplies it natively."""
    metric: str = "perplexity"
    """What decides which weights are kept: perplexity, or a metric of decoded sentences (bleu4, cider, …)."""
    metrics: tuple[str, ...] = ("perplexity", "bleu4")
    """What else is measured and logged at every validation."""
    patience: int | None = Field(default=None, ge=1)
    """Validations without a better metric after which training stops."""
    fuse: int = Field(default=0, ge=0)
    """After training, go on for at most this many epochs with training and validation sentences together, until the
    validation sentences are as probable as the training sentences were when training stopped (Kiros et al., 2014,
    section 7.2); 0 for not at all. A model that is counted is counted again, on both, whatever the number."""
    embeddings: Path | None = None
    """Pre-trained word vectors to begin with: a file in the format of word2vec, GloVe or fastText."""
    validate_every: int = Field(default=1, ge=1)
    """Epochs between validations."""
    save_every: int = Field(default=500, ge=1)
    """Steps between savings of the state a killed run resumes from (also saved after every epoch)."""
    seed: int = Field(default=1, ge=0)

    @field_validator("metric", "metrics")
    @classmethod
    def _metrics_exist(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        for name in (value,) if isinstance(value, str) else value:
            if name != "perplexity" and name not in METRICS:
                raise ValueError(f"no metric '{name}'; expected one of perplexity, {', '.join(METRICS)}")
        return value

    @model_validator(mode="after")
    def _a_rate_to_fuse_with(self) -> Self:
        if self.fuse and self.schedule.name in ("cosine", "linear"):
            raise ValueError(
                f"fuse {self.fuse}, and schedule '{self.schedule.name}' ends at a learning rate of zero, with which "
                "nothing more is learned; take the schedule constant or exponential, or fuse=0"
            )
        return self
