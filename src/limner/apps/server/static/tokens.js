// Words of generated sentences: tokens joined, with log-probability, confidence and attention.

import { regionOf } from "./attention.js";
import { element, percent } from "./parts.js";

const UNSPACED = /[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]/; // scripts without spaces between words

/** Join tokens to words. The text of a token begins with a space where a word begins. */
export function wordsOf(tokens) {
  const words = [];
  for (const token of tokens) {
    const last = words.at(-1);
    const joins = last && !/^\s/.test(token.text) && !UNSPACED.test(token.text) && !UNSPACED.test(last.text);
    if (joins) {
      last.text += token.text;
      last.tokens.push(token);
    } else {
      words.push({ text: token.text.trim(), tokens: [token] });
    }
  }
  return words.filter((word) => word.text).map(summarise);
}

function summarise({ text, tokens }) {
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const maps = tokens.map((token) => token.attention).filter(Boolean);
  return {
    text,
    logProb: tokens.reduce((sum, token) => sum + token.log_prob, 0),
    attention: maps.length ? maps[0].map((_, cell) => mean(maps.map((map) => map[cell]))) : null,
  };
}

/** Probability of a word, which is drawn below it. */
export function probabilityOf(word) {
  return Math.min(1, Math.exp(word.logProb));
}

/** Create the button of a word; its name for screen readers includes probability and the place of its attention. */
export function wordButton(word, grid) {
  const button = element("button", { type: "button", className: "word", textContent: word.text, tabIndex: -1, "aria-pressed": "false" });
  button.dataset.probability = probabilityOf(word).toFixed(2);
  button.style.setProperty("--probability", button.dataset.probability);
  button.append(element("span", { className: "hidden", textContent: `, ${describe(word, grid)}` }));
  return button;
}

/** Describe a word in words: its probability, where its attention is, and its gate. */
export function describe(word, grid) {
  const parts = [`probability ${percent(probabilityOf(word))}`];
  if (word.attention && grid) parts.push(`attention: ${regionOf(word.attention, grid)}`);
  if (typeof word.gate === "number") parts.push(`image gate ${word.gate.toFixed(2)}`);
  return parts.join(", ");
}

/** Rows and columns of a grid of attention; a square one unless the service names it. */
export function gridOf(named, attention) {
  if (named) return named;
  const side = Math.round(Math.sqrt(attention?.length ?? 0));
  return attention && side * side === attention.length ? [side, side] : null;
}
