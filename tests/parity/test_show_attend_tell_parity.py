"""Show, Attend and Tell: hard attention and losses against the oracle, REINFORCE against enumeration."""

import math
from dataclasses import replace

import numpy as np
import oracle_show_attend_tell as oracle
import pytest
import torch
from parity_models import array, arrays, attend_weights, batch_of, randomised

from limner.data.examples import Batch, Example
from limner.decoding.scoring import sentence_log_probs
from limner.models import show_attend_tell
from limner.models.protocols import ModelInputs
from limner.models.show_attend_tell import ShowAttendTell, ShowAttendTellSettings, draw_location
from limner.text.vocab import SPECIAL_TOKENS
from limner.training.losses import word_loss

LOCATIONS, DIM = 2, 3
SENTENCES = [[4, 6], [5], []]
GRIDS = np.random.default_rng(8).normal(size=(len(SENTENCES), LOCATIONS, DIM)).astype(np.float16)


def model_and_theta(**changes) -> tuple[ShowAttendTell, dict[str, np.ndarray]]:
    """A model in float64 with random weights, and the same weights for the oracle."""
    sizes = {"embedding_dim": 3, "hidden_dim": 4, "attention_dim": 5}
    settings = ShowAttendTellSettings.parse({**sizes, **changes})
    model = randomised(ShowAttendTell(settings, ModelInputs(7, {"grid": (LOCATIONS, DIM)})), scale=0.7, seed=7)
    return model, attend_weights(model, arrays(model))


def data(rows=(0, 1, 2)) -> Batch:
    return batch_of([Example(str(row), SENTENCES[row], None, {"grid": GRIDS[row]}) for row in rows])


def words(row: int) -> list[int]:
    return [SPECIAL_TOKENS.bos, *SENTENCES[row], SPECIAL_TOKENS.eos]


def test_the_loss_of_soft_attention_has_the_doubly_stochastic_penalty() -> None:
    model, theta = model_and_theta(doubly_stochastic=0.3)
    loss = word_loss(model.train()(data()), data())
    losses = [oracle.soft_loss(theta, grid, words(row), 0.3) for row, grid in enumerate(GRIDS.astype(np.float64))]
    tokens = sum(len(words(row)) - 1 for row in range(len(SENTENCES)))
    assert float(loss.detach()) == pytest.approx(sum(losses) / tokens, abs=1e-10)


def test_hard_attention_at_test_time_selects_the_most_probable_location() -> None:
    model, theta = model_and_theta(attention="hard")
    output = model.eval()(data())
    ours = sentence_log_probs(output, data())
    for row, grid in enumerate(GRIDS.astype(np.float64)):
        path = output.attention[row].argmax(-1).tolist()[: len(words(row)) - 1]
        steps = oracle.run(theta, grid, words(row), path)
        assert oracle.log_prob(steps, words(row)) == pytest.approx(float(ours[row].detach()), abs=1e-10)
        assert path == [int(step.alpha.argmax()) for step in steps]
        for t, step in enumerate(steps):
            np.testing.assert_allclose(output.attention[row, t].detach(), step.alpha, atol=1e-12)
            assert output.selected[row, t].tolist() == [float(place == path[t]) for place in range(LOCATIONS)]


def sampled_gradient(model: ShowAttendTell, path: tuple[int, ...], monkeypatch) -> dict[str, np.ndarray]:
    """Gradient of the objective (not the loss) of the first sentence for one sequence of sampled locations."""
    locations = iter(path)
    monkeypatch.setattr(show_attend_tell, "draw_location", lambda alpha, draw: torch.tensor([next(locations)]))
    model.zero_grad()
    word_loss(model(data([0])), data([0])).backward()
    return attend_weights(model, {name: -len(path) * array(p.grad) for name, p in model.named_parameters()})


@pytest.mark.parametrize(("reinforce", "entropy", "baseline"), [(1.0, 0.0, 0.0), (1.0, 0.0, -2.5), (0.6, 0.2, -1.5)])
def test_the_expected_gradient_of_hard_attention_equals_enumeration(reinforce, entropy, baseline, monkeypatch) -> None:
    """The mean over all paths s ~ p(s | a); without entropy it is the exact gradient of the lower bound (eq. 11)."""
    changes = {"reinforce": reinforce, "entropy": entropy, "expected_rate": 0.0}
    model, theta = model_and_theta(attention="hard", **changes)
    grid, model = GRIDS[0].astype(np.float64), model.train()
    total = {name: np.zeros_like(value) for name, value in theta.items()}
    for path in oracle.all_paths(grid, words(0)):
        model.baseline.fill_(baseline)
        share = math.exp(oracle.follow(theta, grid, words(0), path).log_path)
        for name, gradient in sampled_gradient(model, path, monkeypatch).items():
            total[name] += share * gradient
    expected = oracle.expected_gradient(theta, grid, words(0), baseline=baseline, reinforce=reinforce, entropy=entropy)
    for name, gradient in expected.items():
        np.testing.assert_allclose(total[name], gradient, atol=1e-6, err_msg=name)
    if not entropy and reinforce == 1:
        for name, gradient in oracle.lower_bound_gradient(theta, grid, words(0)).items():
            np.testing.assert_allclose(total[name], gradient, atol=1e-6, err_msg=name)


def test_expected_locations_are_those_of_soft_attention_and_add_no_reinforce_term() -> None:
    model, theta = model_and_theta(attention="hard", expected_rate=1.0, entropy=0.0)
    loss = word_loss(model.train()(data()), data())
    steps = [oracle.run(theta, grid, words(row)) for row, grid in enumerate(GRIDS.astype(np.float64))]
    total = sum(oracle.log_prob(one, words(row)) for row, one in enumerate(steps))
    tokens = sum(len(words(row)) - 1 for row in range(len(SENTENCES)))
    assert float(loss.detach()) == pytest.approx(-total / tokens, abs=1e-10)


def test_the_baseline_is_a_moving_average_and_is_saved() -> None:
    model, _ = model_and_theta(attention="hard")
    means = []
    for _ in range(3):
        torch.manual_seed(len(means))
        output = model.train()(data())
        log_probs = output.logits.log_softmax(-1).gather(-1, data().target_out[..., None])[..., 0]
        means.append(float((log_probs * data().target_mask).sum(1).mean().detach()))
    assert float(model.baseline) == pytest.approx(oracle.moving_baseline(means)[-1])
    assert "baseline" in model.state_dict()


def test_test_attention_sample_draws_locations_by_their_probability() -> None:
    model, _ = model_and_theta(attention="hard", test_attention="sample")
    batch = replace(data([0] * 400), ids=tuple(map(str, range(400))))
    output = model.eval()(batch)
    for t in range(len(words(0)) - 1):
        drawn, alpha = output.selected[:, t].detach(), output.attention[:, t].detach()
        assert set(drawn.unique().tolist()) == {0.0, 1.0}
        np.testing.assert_allclose(drawn.mean(0), alpha.mean(0), atol=0.1)
    both = torch.stack([output.selected[:, t, 0] for t in (0, 1)]).detach()
    assert abs(float(torch.corrcoef(both)[0, 1])) < 0.2, "the locations of different steps are drawn independently"


def test_sampled_locations_depend_on_the_example_and_the_step_only() -> None:
    model, _ = model_and_theta(attention="hard", test_attention="sample")
    batch, scores = data(), []
    for seed in range(3):
        torch.manual_seed(seed)
        scores.append(sentence_log_probs(model.eval()(batch), batch).tolist())
        reverse = data((2, 1, 0))
        assert sentence_log_probs(model(reverse), reverse).tolist()[::-1] == pytest.approx(scores[-1])
    assert scores[0] == scores[1] == scores[2]
    other = replace(batch, ids=("a", "b", "c"))
    assert sentence_log_probs(model(other), other).tolist() != pytest.approx(scores[0])


def test_locations_are_drawn_at_the_inverse_of_the_distribution() -> None:
    alpha = torch.tensor([[0.0, 0.25, 0.75, 0.0]]).expand(5, -1)
    draws = torch.tensor([0.0, 0.24, 0.26, 0.999, 1.0], dtype=torch.float64)
    assert draw_location(alpha, draws).tolist() == [1, 1, 2, 2, 2]
