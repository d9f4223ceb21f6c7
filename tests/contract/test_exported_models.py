"""Graphs of every model that has them compute what the model computes, and are decoded to the same sentences."""

from functools import cache

import numpy as np
import pytest
import torch
from models import CASES, SOURCE_VOCAB, VOCAB, batch

from limner.apps.export.folder import refusal
from limner.apps.export.record import TOLERANCE, largest_difference, record_model
from limner.decoding.search import search
from limner.decoding.settings import DecodingSettings
from limner.decoding.torch_models import beam_search
from limner.features.spec import FeatureSpec
from limner.runtime.graphs import Graph, GraphModel

pytest.importorskip("onnx")

REFUSED = {"bow", "dense", "hmm", "labeller", "ngram", "transformer"}


def is_refused(case):
    return refusal(case.settings, build(case), labels=bool(case.labels))


BY_NAME = {case.name: case for case in CASES}


def build(case):
    return build_named(case.name)


@cache
def build_named(name):
    torch.manual_seed(1)
    model = BY_NAME[name].build().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # initial biases are zero and would hide mistakes
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


EXPORTABLE = [case for case in CASES if not is_refused(case)]


def recorded(case):
    return recorded_named(case.name)


@cache
def recorded_named(name):
    case = BY_NAME[name]
    specs = [FeatureSpec.model_construct(kind=kind, shape=shape) for kind, shape in case.image.items()]
    source_vocab_size = SOURCE_VOCAB if case.translates else None
    return specs, source_vocab_size, record_model(build(case), specs, source_vocab_size)


def test_what_is_refused_has_a_reason():
    refused = {case.name: is_refused(case) for case in CASES if is_refused(case)}
    others = {name for name in refused if name.partition("-")[0] not in REFUSED}
    assert others == {"nmt-peephole", "show-attend-tell-sample"}
    assert "PeepholeCell" in refused["nmt-peephole"] and "test_attention" in refused["show-attend-tell-sample"]


@pytest.mark.parametrize("case", EXPORTABLE, ids=lambda case: case.name)
def test_graphs_equal_the_model(case):
    specs, source_vocab_size, graphs = recorded(case)
    assert largest_difference(build(case), specs, source_vocab_size, graphs).value <= TOLERANCE


@pytest.mark.parametrize("stop", ["full", "shrink"])
@pytest.mark.parametrize("case", EXPORTABLE, ids=lambda case: case.name)
def test_the_runtime_finds_the_hypotheses_of_the_beam_search(case, stop):
    *_, graphs = recorded(case)
    data, prefixes = batch(case), [(), (5,), (4, 6), ()]
    rules = {"length_penalty": 0.7, "min_length": 1, "max_length": 7, "ban_unknown": True, "stop": stop}
    settings = DecodingSettings(beam_size=3, n_best=3, **rules)
    expected = beam_search([build(case)], data, settings, prefixes)
    values = {**data.image._asdict(), "source": data.source, "source_mask": data.source_mask}
    encoder = Graph("encoder", graphs.encoder)
    encoded = encoder({name: one.numpy() for name, one in values.items() if one is not None})
    model = GraphModel(encoder, Graph("step", graphs.step), VOCAB, graphs.memory, graphs.state)
    found = search(model, model.encoded(encoded), data.ids, settings, prefixes)
    ranked = [[[(round(-one.score, 3), one.tokens) for one in n] for n in decoded] for decoded in (found, expected)]
    assert [sorted(n_best) for n_best in ranked[0]] == [sorted(n_best) for n_best in ranked[1]]  # ties in any order
    scores = [[one.score for n_best in decoded for one in n_best] for decoded in (found, expected)]
    np.testing.assert_allclose(*scores, atol=1e-4)
