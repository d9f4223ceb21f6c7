// The view that translates a sentence, with and without an image side by side.

import { HeatMap, WordBar } from "./attention.js";
import { post } from "./api.js";
import { dataUrl, ImageInput } from "./image_input.js";
import { announce, command, copy, element, Status } from "./parts.js";
import { describe, gridOf, wordButton, wordsOf } from "./tokens.js";

const GUESS = "The sentence is unlike the sentences of the training: its translation is a guess.";

export class TranslateView {
  #stop = null;

  constructor(view) {
    this.view = view;
    this.status = new Status(view);
    this.input = new ImageInput(view.querySelector("[data-image-input]"), () => this.run(), (error) => this.status.fail(error));
    this.map = new HeatMap(this.input.stage);
    this.results = view.querySelector(".translations");
    view.querySelector(".request").addEventListener("submit", (event) => {
      event.preventDefault();
      this.run();
    });
    view.querySelector("#source").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey) {
        event.preventDefault();
        this.run();
      }
    });
    view.querySelector(".remove").addEventListener("click", () => {
      this.input.remove();
      this.map.clear();
      this.run();
    });
  }

  /** Offer the translation models of the service, or say how to serve one. */
  offer(models) {
    this.models = models;
    const missing = this.view.querySelector(".missing");
    missing.hidden = models.length > 0;
    this.view.querySelector(".available").hidden = models.length === 0;
    missing.replaceChildren(
      element("h3", { textContent: "No translation model is served" }),
      element("p", { textContent: "Start the service with a run of a translation model; the demo trains one that reads the image:" }),
      command("limner serve --model demo/translation"),
    );
    const select = this.view.querySelector("#translator");
    select.replaceChildren(...models.map((model) =>
      element("option", { value: model.id, textContent: `${model.id}: ${model.source} to ${model.languages.join(", ")}` })));
    select.closest(".setting").hidden = models.length < 2;
    this.input.root.hidden = !models.some((model) => model.uses_image);
  }

  /** Take over the image of another view, if there is none here. */
  offerImage(file) {
    if (!this.input.file && this.models?.length) this.input.show(file);
  }

  get model() {
    return this.models.find((model) => model.id === this.view.querySelector("#translator").value);
  }

  /** Translate the sentence: without the image, and with it if there is one that the model reads. */
  async run() {
    const text = this.view.querySelector("#source").value.trim();
    if (!text) {
      this.view.querySelector("#source").focus();
      return;
    }
    this.#stop?.abort();
    const stop = new AbortController();
    this.#stop = stop;
    this.status.busy("Translating …");
    this.map.clear();
    this.results.replaceChildren();
    try {
      const { file } = this.input;
      const image = file && this.model.uses_image ? await dataUrl(file) : null;
      const body = { text, model: this.model.id, explain: this.model.explains };
      const bodies = [...(image ? [{ ...body, image }] : []), body];
      const [first, second] = await Promise.all(bodies.map((one) => post("v1/translate", one, stop.signal)));
      if (stop.signal.aborted) return;
      this.status.clear();
      this.#present(image ? first : null, image ? second : first);
    } catch (error) {
      if (stop.signal.aborted) return;
      this.status.fail(error, { retry: () => this.run(), smaller: () => this.input.shrink().then(() => this.run()) });
    }
  }

  #present(withImage, without) {
    const plain = this.model.uses_image ? "Without the image" : "Translation";
    const cards = [...(withImage ? [["With the image", withImage]] : []), [plain, without]];
    this.results.replaceChildren(...cards.map(([title, result]) => this.#card(title, result)));
    announce(cards.map(([title, { translations }]) => `${title}: ${translations[0].text}`).join(". "));
  }

  #card(title, result) {
    const { explanation } = result;
    const grid = gridOf(explanation?.grid_size, explanation?.attention?.[0]);
    const best = result.translations[0];
    const words = explanation ? explainedWords(explanation) : wordsOf(best.tokens);
    const source = element("p", { className: "words source" }, ...(explanation?.source ?? []).map((text) =>
      element("span", { className: "word", textContent: text })));
    const target = element("div", { className: "words", role: "toolbar", "aria-label": `Words of the translation, ${title.toLowerCase()}` },
      ...words.map((word) => wordButton(word, grid)));
    target.lang = result.lang ?? "";
    const copied = element("button", { type: "button", className: "button", textContent: "Copy" });
    copied.addEventListener("click", () => copy(best.text, copied));
    copied.setAttribute("aria-label", `Copy the translation, ${title.toLowerCase()}`);
    const gates = explanation?.gate && title === "With the image" ? gateList(words) : null;
    const detail = element("p", { className: "detail quiet" });
    const guess = result.out_of_domain ? element("p", { className: "quiet", textContent: GUESS }) : null;
    const card = element("article", { className: "card translation" }, element("h3", { textContent: title }), source, target, guess, detail,
      element("p", { className: "buttons" }, copied), gates, explanation?.alignment ? matrix(explanation, words) : null);
    const bar = new WordBar(target, (button) => {
      const shown = button ? bar.words.indexOf(button) : -1;
      this.#show(words[shown], explanation, source, gates, shown, title);
      detail.textContent = words[shown] ? `${words[shown].text}: ${describe(words[shown], grid)}` : hintOf(explanation);
    });
    detail.textContent = hintOf(explanation);
    return card;
  }

  /** Show what a word is aligned with in the source and, with the image, where its attention is. */
  #show(word, explanation, source, gates, shown, title) {
    [...source.children].forEach((one, column) => {
      const weight = word?.alignment?.[column] ?? 0;
      one.classList.toggle("aligned", weight > 0.05);
      one.style.setProperty("--weight", weight.toFixed(2));
    });
    gates?.querySelectorAll("li").forEach((line, number) => line.classList.toggle("shown", number === shown));
    if (word?.attention && title === "With the image") this.map.show(word.attention, gridOf(explanation.grid_size, word.attention), explanation.box ?? undefined);
    else this.map.clear();
  }
}

function explainedWords({ target, alignment, attention, gate }) {
  return target.map(({ text, log_prob }, row) => ({
    text, logProb: log_prob, alignment: alignment?.[row] ?? null, attention: attention?.[row] ?? null,
    gate: gate?.[row] ?? null,
  }));
}

function hintOf(explanation) {
  return explanation?.alignment ? "Point at a word to see the source words and the part of the image it is aligned with." : "";
}

function gateList(words) {
  const line = ({ text, gate }) => element("li", {}, element("span", { textContent: text }),
    element("span", { className: "track", "aria-hidden": "true" }, share(gate)), element("span", { className: "value", textContent: gate.toFixed(2) }));
  return element("div", { className: "gates" }, element("h3", { textContent: "Image gate β of each word" }), element("ul", {}, ...words.map(line)));
}

function share(fraction) {
  const bar = element("span");
  bar.style.setProperty("--share", fraction);
  return bar;
}

/** The alignment as a table: rows are target words, columns are source words. */
function matrix({ source, alignment }, words) {
  const cell = (weight) => {
    const made = element("td", { textContent: weight >= 0.05 ? weight.toFixed(2).replace(/^0/, "") : "" });
    made.style.setProperty("--weight", weight.toFixed(2));
    return made;
  };
  const head = element("tr", {}, element("td"), ...source.map((text) => element("th", { scope: "col", textContent: text })));
  const rows = words.map((word, row) => element("tr", {}, element("th", { scope: "row", textContent: word.text }), ...alignment[row].map(cell)));
  return element("details", {}, element("summary", { textContent: "Alignment as a table" }),
    element("div", { className: "wide", tabIndex: 0, role: "region", "aria-label": "Alignment of target and source words" },
      element("table", { className: "matrix" }, element("thead", {}, head), element("tbody", {}, ...rows))));
}
