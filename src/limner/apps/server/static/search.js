// The view that searches an indexed folder by a sentence or by an image.

import { imageUrl, post } from "./api.js";
import { dataUrl, ImageInput } from "./image_input.js";
import { command, element, Status } from "./parts.js";

const LIMIT = 24;

export class SearchView {
  #stop = null;

  constructor(view) {
    this.view = view;
    this.status = new Status(view);
    this.byImage = view.querySelector(".by-image");
    this.found = view.querySelector(".found");
    this.hits = view.querySelector(".hits");
    this.input = new ImageInput(view.querySelector("[data-image-input]"), (file) => this.#searchByImage(file), (error) => this.status.fail(error));
    view.querySelector("form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#searchByText();
    });
  }

  /** Offer the indexed folders of the service, or say how to index one. */
  offer(indexes) {
    const missing = this.view.querySelector(".missing");
    missing.hidden = indexes.length > 0;
    this.view.querySelector(".available").hidden = indexes.length === 0;
    missing.replaceChildren(
      element("h3", { textContent: "No folder is indexed" }),
      element("p", { textContent: "Index a folder of images, which captions all of them, and serve the index:" }),
      command("limner index FOLDER"),
      command("limner serve --index FOLDER"),
    );
  }

  #searchByText() {
    const query = this.view.querySelector("#query").value.trim();
    this.byImage.hidden = true;
    if (query) this.#search(async () => ({ query }), `“${query}”`);
    else this.view.querySelector("#query").focus();
  }

  #searchByImage(file) {
    this.view.querySelector("#query").value = "";
    this.byImage.hidden = false;
    const smaller = () => this.input.shrink().then(() => this.#searchByImage(this.input.file));
    this.#search(async () => ({ image: await dataUrl(file) }), "your image", smaller);
  }

  async #search(query, name, smaller = null) {
    this.#stop?.abort();
    const stop = new AbortController();
    this.#stop = stop;
    this.status.busy("Searching …");
    this.found.textContent = "";
    this.hits.replaceChildren();
    try {
      const { hits } = await post("v1/search", { ...(await query()), limit: LIMIT }, stop.signal);
      const cards = await Promise.all(hits.map(card));
      if (stop.signal.aborted) return;
      this.status.clear();
      this.hits.replaceChildren(...cards);
      this.found.textContent = hits.length ? `${hits.length} best images for ${name}` : `No image was found for ${name}.`;
    } catch (error) {
      if (stop.signal.aborted) return;
      this.status.fail(error, { retry: () => this.#search(query, name, smaller), smaller });
    }
  }
}

/** A found image; the score is a log-probability or a similarity. */
async function card({ name, caption, abstained, score, thumbnail }) {
  const image = element("img", { loading: "lazy", alt: caption ? "" : name, src: await imageUrl(thumbnail) });
  return element("li", { className: "card hit" }, image, element("p", { textContent: abstained ? "Not sure" : caption ?? "" }),
    element("small", { textContent: `${name} · ${score.toFixed(2)}` }));
}
