// The view that captions an image.

import { HeatMap, WordBar } from "./attention.js";
import { ApiError, events } from "./api.js";
import { dataUrl, ImageInput } from "./image_input.js";
import { announce, copy, element, percent, Status } from "./parts.js";
import { describe, gridOf, wordButton, wordsOf } from "./tokens.js";

const PACE_MS = 110; // shortest time between two words that appear
const SETTLE_MS = 350; // time without a change of a setting before the image is described again
const N_BEST = 5;

function randomSeed() {
  return crypto.getRandomValues(new Uint32Array(1))[0] >>> 1;
}

export class DescribeView {
  #stop = null;
  #timer = 0;
  #words = [];
  #grid = null;
  #captions = [];

  constructor(view, shareImage) {
    this.view = view;
    this.form = view.querySelector(".settings");
    this.caption = view.querySelector(".caption");
    this.status = new Status(view);
    this.input = new ImageInput(
      view.querySelector("[data-image-input]"),
      (file) => { shareImage(file); this.run(); },
      (error) => this.status.fail(error),
    );
    this.map = new HeatMap(this.input.stage);
    this.bar = new WordBar(view.querySelector(".words"), (button) => this.#show(button));
    view.querySelector(".copy").addEventListener("click", (event) => copy(this.text, event.currentTarget));
    view.querySelector(".again").addEventListener("click", () => this.run());
    view.querySelector(".beams").addEventListener("change", (event) => this.#choose(Number(event.target.value)));
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.form.addEventListener("input", () => this.#changed());
    this.#label();
  }

  /** The text of the caption that is shown. */
  get text() {
    return this.#captions[this.chosen]?.text ?? "";
  }

  /** Offer the models and languages of the service. */
  offer(models) {
    this.models = models;
    this.#options("model", models.map((model) => [model.id, model.id]));
    this.#offerLanguages();
  }

  /** Describe the present image with the present settings. */
  async run() {
    const { file } = this.input;
    if (!file) return;
    this.#stop?.abort();
    const stop = new AbortController();
    this.#stop = stop;
    this.#begin();
    try {
      const body = { image: await dataUrl(file), ...this.#request() };
      for await (const [name, event] of events("v1/describe", body, stop.signal)) {
        if (stop.signal.aborted) return;
        if (name === "token") await this.#add(event, stop.signal);
        if (name === "error") throw new ApiError(500, event.error.message);
        if (name === "done") this.#finish(event);
      }
    } catch (error) {
      if (stop.signal.aborted) return;
      this.#discard();
      this.status.fail(error, { retry: () => this.run(), smaller: () => this.input.shrink().then(() => this.run()) });
    }
  }

  #request() {
    const { form } = this;
    const number = (name) => Number(form.elements[name].value);
    const sampling = form.elements.method.value === "sample";
    const decoding = sampling
      ? { sample: true, beam_size: N_BEST, n_best: N_BEST, temperature: number("temperature"), seed: randomSeed() }
      : { beam_size: number("beam_size"), n_best: Math.min(N_BEST, number("beam_size")), length_penalty: number("length_penalty") };
    const chosen = { model: form.elements.model.value || undefined, lang: form.elements.lang.value || undefined };
    return { ...chosen, ...decoding, attention: this.#model?.explains ?? false, stream: true };
  }

  #begin() {
    this.status.busy("Reading the image …");
    this.view.querySelector(".waiting").hidden = true;
    this.#words = [];
    this.tokens = [];
    this.map.clear();
    this.bar.element.replaceChildren();
    this.caption.classList.remove("abstained");
    for (const part of [".unsure", ".tags", ".beams", ".detail", ".caption > .buttons"]) this.view.querySelector(part).hidden = true;
    this.caption.hidden = false;
    this.view.setAttribute("aria-busy", "true");
    this.shownAt = 0;
  }

  #discard() {
    this.caption.hidden = true;
    this.map.clear();
    this.view.removeAttribute("aria-busy");
  }

  /** Add a token that has been decided, and draw its attention. */
  async #add(token, signal) {
    const wait = matchMedia("(prefers-reduced-motion: reduce)").matches ? 0 : this.shownAt + PACE_MS - performance.now();
    if (wait > 0) await new Promise((resolve) => { setTimeout(resolve, wait); });
    if (signal.aborted) return;
    this.shownAt = performance.now();
    this.status.progress.querySelector(".label").textContent = "Generating …";
    this.tokens.push(token);
    this.#setWords(wordsOf(this.tokens), gridOf(token.grid_size, token.attention));
    this.bar.words.at(-1)?.classList.add("new");
    const word = this.#words.at(-1);
    if (word?.attention && this.#grid) this.map.show(word.attention, this.#grid, this.box);
  }

  #setWords(words, grid) {
    [this.#words, this.#grid] = [words, grid];
    const close = words.every((word) => /^[^\x00-\u02ff]/.test(word.text));
    this.bar.element.classList.toggle("close", close && words.length > 0);
    this.bar.element.replaceChildren(...words.map((word) => wordButton(word, grid)));
    this.bar.reset();
  }

  #finish(result) {
    this.status.clear();
    this.view.removeAttribute("aria-busy");
    this.#captions = result.captions;
    this.gridSize = result.grid_size;
    this.box = result.box ?? undefined;
    this.#listBeams();
    this.#listTags(result.tags ?? []);
    this.#choose(0);
    const abstained = Boolean(result.abstained);
    this.caption.classList.toggle("abstained", abstained);
    const unsure = this.view.querySelector(".unsure");
    unsure.hidden = !abstained;
    unsure.textContent = "Not sure. The model knows nothing that is probable in this image; its best guess is below.";
    this.view.querySelector(".caption > .buttons").hidden = false;
    this.view.querySelector(".again").hidden = this.form.elements.method.value !== "sample";
    announce(abstained ? `Not sure. Best guess: ${this.text}` : `Caption: ${this.text}`);
  }

  /** Show the candidate of a number. */
  #choose(number) {
    this.chosen = number;
    const caption = this.#captions[number];
    this.map.clear();
    const attention = caption.tokens.find((token) => token.attention)?.attention;
    this.#setWords(wordsOf(caption.tokens), gridOf(this.gridSize, attention));
    this.bar.element.lang = this.lang;
    this.view.querySelector(".detail").hidden = false;
    this.#hint();
  }

  get lang() {
    return this.form.elements.lang.value || "en";
  }

  #listBeams() {
    const beams = this.view.querySelector(".beams");
    beams.hidden = this.#captions.length < 2;
    beams.querySelector("ol").replaceChildren(...this.#captions.map((caption, number) => element("li", {},
      element("label", {},
        element("input", { type: "radio", name: "candidate", value: number, checked: number === 0 }),
        element("span", { textContent: caption.text, lang: this.lang }),
        element("span", { className: "log-prob", textContent: caption.log_prob.toFixed(2), title: "log-probability" })))));
  }

  #listTags(tags) {
    const part = this.view.querySelector(".tags");
    part.hidden = tags.length === 0;
    part.querySelector("ul").replaceChildren(...tags.map(({ name, probability }) =>
      element("li", {}, name, element("small", { textContent: percent(probability) }))));
  }

  #show(button) {
    const word = button ? this.#words[this.bar.words.indexOf(button)] : null;
    if (!word) {
      this.map.clear();
      this.#hint();
      return;
    }
    if (word.attention && this.#grid) this.map.show(word.attention, this.#grid, this.box);
    else this.map.clear();
    this.view.querySelector(".detail").replaceChildren(
      element("strong", { textContent: word.text, lang: this.lang }), ` ${describe(word, this.#grid)}`);
  }

  /** Print the confidence of the caption, and what the words show. */
  #hint() {
    const { confidence } = this.#captions[this.chosen] ?? {};
    const maps = this.#words.some((word) => word.attention) ? "; point at a word to see its attention" : "";
    const total = typeof confidence === "number" ? element("strong", { textContent: `Confidence ${percent(confidence)}. ` }) : "";
    this.view.querySelector(".detail").replaceChildren(total, `The line under a word is its probability${maps}.`);
  }

  #changed() {
    this.#label();
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.run(), SETTLE_MS);
  }

  /** Print the values of the sliders, and show the settings of the method. */
  #label() {
    const sampling = this.form.elements.method.value === "sample";
    this.form.querySelectorAll(".for-search").forEach((one) => { one.hidden = sampling; });
    this.form.querySelectorAll(".for-sample").forEach((one) => { one.hidden = !sampling; });
    this.form.querySelectorAll("input[type=range]").forEach((input) => {
      input.nextElementSibling.textContent = input.step < 1 ? Number(input.value).toFixed(1) : input.value;
    });
  }

  get #model() {
    return this.models.find((model) => model.id === this.form.elements.model.value) ?? this.models[0];
  }

  #offerLanguages() {
    const chosen = this.#model;
    const names = new Intl.DisplayNames(["en"], { type: "language", fallback: "code" });
    for (const name of ["beam_size", "length_penalty"]) if (chosen) this.form.elements[name].value = chosen[name];
    this.#label();
    this.#options("lang", (chosen?.languages ?? []).map((lang) => [lang, names.of(lang)]));
  }

  #options(name, values) {
    const select = this.form.elements[name];
    select.replaceChildren(...values.map(([value, text]) => element("option", { value, textContent: text })));
    select.closest(".setting").hidden = values.length < 2;
    if (name === "model") select.onchange = () => this.#offerLanguages();
  }
}
