"""Oracle of VSE++ and of the softmax losses: the equations in NumPy float64, pair by pair."""

import numpy as np


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gru(x, h, w):
    """One step of the GRU that resets the recurrent product; `w` has W, U and b of the gates r, z and n."""
    r = sigmoid(w["W_r"] @ x + w["b_r"] + w["U_r"] @ h)
    z = sigmoid(w["W_z"] @ x + w["b_z"] + w["U_z"] @ h)
    n = np.tanh(w["W_n"] @ x + w["b_n"] + r * (w["U_n"] @ h))
    return (1 - z) * n + z * h


def unit(x):
    return x / np.sqrt((x * x).sum())


def sentence_vector(tokens, w, pooling):
    """u(w) of a sentence with <s>, which is token 1."""
    if pooling == "words":
        return unit(w["W_g"] @ np.mean([w["E"][token] for token in [1, *tokens]], 0) + w["b_g"])
    h, states = np.zeros(w["U_n"].shape[0]), []
    for token in [1, *tokens]:
        h = gru(w["E"][token], h, w)
        states.append(h)
    return unit(w["W_g"] @ (np.mean(states, 0) if pooling == "mean" else h) + w["b_g"])


def image_vector(x, w):
    return unit(w["W_f"] @ x + w["b_f"])


def contrastive(s, owners, margin, hardest):
    """Eqs. 5 and 6 of Faghri et al. (2018), averaged over the pairs (w, I)."""
    reduce, total = (max if hardest else sum), 0.0
    for w, own in enumerate(owners):
        images = [max(0.0, margin + s[w, i] - s[w, own]) for i in range(s.shape[1]) if i != own]
        sentences = [max(0.0, margin + s[v, own] - s[w, own]) for v in range(len(owners)) if owners[v] != own]
        total += reduce(images) + reduce(sentences)
    return total / len(owners)


def softmax_loss(logits, owners, sentences):
    """Cross-entropies of the pairs of both directions; an image with the same sentence is no negative of it."""
    count_w, count_i = logits.shape
    of_image = [{str(sentences[w]) for w in range(count_w) if owners[w] == i} for i in range(count_i)]
    counts = [[owners[w] == i or str(sentences[w]) not in of_image[i] for i in range(count_i)] for w in range(count_w)]
    e = np.exp(logits) * np.array(counts)
    texts = [np.log(e[w].sum() / e[w, owners[w]]) for w in range(count_w)]
    images = [np.log(e[:, i].sum() / sum(e[w, i] for w in range(count_w) if owners[w] == i)) for i in range(count_i)]
    return np.mean(texts) + np.mean(images)


def paraphrases(logits, owners, words):
    """Cross-entropy of the other sentences of the item of each sentence that has some.

    Sentences of other items that are equal to one of the item are no negatives.
    """
    terms = []
    for w, own in enumerate(owners):
        of_item = {words[v] for v in range(len(owners)) if owners[v] == own}
        others = [v for v in range(len(owners)) if v != w and (owners[v] == own or words[v] not in of_item)]
        same = [v for v in others if owners[v] == own]
        if same:
            terms.append(np.log(sum(np.exp(logits[w, v]) for v in others) / sum(np.exp(logits[w, v]) for v in same)))
    return np.mean(terms) if terms else 0.0
