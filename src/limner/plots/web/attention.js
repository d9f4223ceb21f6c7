// Attention of words over an image, shared by the page of the service and by the report.

const SIGMA = 0.5; // standard deviation of the Gaussian that smooths weights, in cells of the grid
const MASK_SIDE = 192; // longer side of the upsampled weights in pixels
const CANVAS_SIDE = 1280; // longer side of the coloured image in pixels, at most
const GLIDE_MS = 220; // duration of the change from one word to the next

/** Approximate the error function (Abramowitz and Stegun, 1964, eq. 7.1.26). */
function erf(x) {
  const t = 1 / (1 + 0.3275911 * Math.abs(x));
  const series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
  return Math.sign(x) * (1 - series * Math.exp(-x * x));
}

/** Weights of `count` cells for each of `length` pixels: integrals of a Gaussian over the cells, which sum to 1. */
function upsampling(count, length) {
  return Array.from({ length }, (_, pixel) => {
    const centre = ((pixel + 0.5) * count) / length;
    const edges = Array.from({ length: count + 1 }, (_, cell) => erf((cell - centre) / (SIGMA * Math.SQRT2)));
    const covered = edges.slice(1).map((edge, cell) => edge - edges[cell]);
    const total = covered.reduce((sum, value) => sum + value, 0);
    return covered.map((value) => value / total);
  });
}

/** Upsample a grid of weights to width x height values, scaled to a maximum of 1; all zero if the weights are. */
export function strengths(weights, [rows, columns], width, height) {
  const down = upsampling(rows, height);
  const across = upsampling(columns, width);
  const values = new Float32Array(width * height);
  let largest = 0;
  for (let y = 0; y < height; y += 1) {
    const line = Array.from({ length: columns }, (_, column) =>
      down[y].reduce((sum, share, row) => sum + share * weights[row * columns + column], 0));
    for (let x = 0; x < width; x += 1) {
      const value = across[x].reduce((sum, share, column) => sum + share * line[column], 0);
      values[y * width + x] = value;
      largest = Math.max(largest, value);
    }
  }
  return largest > 1e-12 ? values.map((value) => value / largest) : values.fill(0);
}

/** Describe where most of the attention is, in words: "upper left", "centre", "spread over the image". */
export function regionOf(weights, [rows, columns]) {
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  if (!(total > 0)) return "nowhere";
  let [x, y] = [0, 0];
  weights.forEach((weight, cell) => {
    x += (weight / total) * (((cell % columns) + 0.5) / columns);
    y += (weight / total) * ((Math.floor(cell / columns) + 0.5) / rows);
  });
  const spread = weights.reduce((sum, weight, cell) => {
    const [dx, dy] = [((cell % columns) + 0.5) / columns - x, (Math.floor(cell / columns) + 0.5) / rows - y];
    return sum + (weight / total) * (dx * dx + dy * dy);
  }, 0);
  if (spread > 0.13) return "spread over the image"; // uniform attention has 1/6
  const third = (value, names) => names[value < 0.4 ? 0 : value > 0.6 ? 2 : 1];
  const [down, across] = [third(y, ["upper", "", "lower"]), third(x, ["left", "", "right"])];
  if (!down) return across || "centre";
  return `${down} ${across || "middle"}`;
}

/** Decode the weights that the report stores as base64: one byte a cell, scaled by the largest weight of the word. */
export function decodeWeights(text) {
  return Array.from(atob(text), (character) => character.charCodeAt(0) / 255);
}

/** Draws attention on an image: the image turns dark and grey, and is coloured where it is attended to. */
export class HeatMap {
  #image;
  #canvas = document.createElement("canvas");
  #mask = document.createElement("canvas");
  #frame = 0;
  #shown = null;

  /** @param stage element around the image, which is positioned and has the size of the image. */
  constructor(stage) {
    this.stage = stage;
    this.#image = stage.querySelector("img");
    this.#canvas.setAttribute("aria-hidden", "true");
    this.#canvas.className = "attended-part";
    stage.append(this.#canvas);
  }

  /**
   * Show the attention of a word, gliding from that of the word before.
   *
   * @param weights weights of the locations, row by row.
   * @param grid rows and columns.
   * @param box left, top, right and bottom of the part of the image under the grid, as fractions of its sides.
   */
  show(weights, grid, box = [0, 0, 1, 1]) {
    if (!this.#image.naturalWidth) return;
    const largest = Math.max(...weights, 1e-12);
    const target = Array.from(weights, (weight) => weight / largest);
    const start = this.#shown?.length === target.length && this.stage.classList.contains("attending") ? this.#shown : null;
    this.stage.classList.add("attending");
    cancelAnimationFrame(this.#frame);
    if (!start || matchMedia("(prefers-reduced-motion: reduce)").matches) {
      this.#draw(target, grid, box);
      return;
    }
    const began = performance.now();
    const glide = (now) => {
      const done = Math.min(1, Math.max(0, (now - began) / GLIDE_MS));
      const eased = done * done * (3 - 2 * done);
      this.#draw(target.map((weight, cell) => start[cell] + eased * (weight - start[cell])), grid, box);
      if (done < 1) this.#frame = requestAnimationFrame(glide);
    };
    this.#frame = requestAnimationFrame(glide);
  }

  /** Show the image without attention. */
  clear() {
    cancelAnimationFrame(this.#frame);
    this.#shown = null;
    this.stage.classList.remove("attending");
  }

  #draw(weights, grid, box) {
    this.#shown = weights;
    const { naturalWidth, naturalHeight } = this.#image;
    const scale = Math.min(1, CANVAS_SIDE / Math.max(naturalWidth, naturalHeight));
    const [width, height] = [naturalWidth, naturalHeight].map((side) => Math.max(1, Math.round(side * scale)));
    if (this.#canvas.width !== width || this.#canvas.height !== height) {
      [this.#canvas.width, this.#canvas.height] = [width, height];
    }
    this.#drawMask(weights, grid, width / height);
    const context = this.#canvas.getContext("2d");
    const [left, top, right, bottom] = box;
    const area = [left * width, top * height, (right - left) * width, (bottom - top) * height];
    context.globalCompositeOperation = "copy";
    context.drawImage(this.#mask, ...area);
    context.globalCompositeOperation = "source-in";
    context.drawImage(this.#image, 0, 0, width, height);
  }

  #drawMask(weights, grid, shape) {
    const [width, height] = shape > 1 ? [MASK_SIDE, MASK_SIDE / shape] : [MASK_SIDE * shape, MASK_SIDE];
    [this.#mask.width, this.#mask.height] = [width, height].map((side) => Math.max(1, Math.round(side)));
    const context = this.#mask.getContext("2d");
    const pixels = context.createImageData(this.#mask.width, this.#mask.height);
    strengths(weights, grid, this.#mask.width, this.#mask.height).forEach((strength, pixel) => {
      pixels.data[4 * pixel + 3] = Math.round(255 * strength);
    });
    context.putImageData(pixels, 0, 0);
  }
}

/**
 * Words of a sentence as a toolbar: the pointer or the focus shows the attention of a word, a click or the Enter key
 * keeps it, the Escape key releases it, and the arrow keys go from word to word.
 */
export class WordBar {
  #kept = null;

  /**
   * @param element toolbar, whose buttons have the class `word`; they may be replaced at any time.
   * @param onShow called with the button whose attention is to be shown, or null.
   */
  constructor(element, onShow) {
    this.element = element;
    this.onShow = onShow;
    element.addEventListener("pointerover", (event) => {
      const word = event.target.closest(".word");
      if (word && event.pointerType === "mouse") this.#show(word);
    });
    element.addEventListener("pointerleave", (event) => {
      if (event.pointerType === "mouse") this.#show(null);
    });
    element.addEventListener("focusin", (event) => {
      this.#rove(event.target);
      if (event.target.matches(":focus-visible")) this.#show(event.target);
    });
    element.addEventListener("focusout", () => this.#show(null));
    element.addEventListener("click", (event) => this.#keep(event.target.closest(".word")));
    element.addEventListener("keydown", (event) => this.#move(event));
    this.reset();
  }

  get words() {
    return [...this.element.querySelectorAll(".word")];
  }

  /** Take over the present buttons; no word is kept. */
  reset() {
    this.#kept = null;
    this.words.forEach((word, place) => {
      word.tabIndex = place === 0 ? 0 : -1;
      word.setAttribute("aria-pressed", "false");
    });
  }

  /** Release the kept word. */
  release() {
    this.#keep(this.#kept);
  }

  #show(word) {
    const shown = word ?? this.#kept;
    this.words.forEach((one) => one.classList.toggle("shown", one === shown));
    this.onShow(shown);
  }

  #keep(word) {
    if (!word) return;
    this.#kept = word === this.#kept ? null : word;
    this.words.forEach((one) => one.setAttribute("aria-pressed", String(one === this.#kept)));
    this.#show(null);
  }

  #rove(word) {
    if (word.matches(".word")) this.words.forEach((one) => { one.tabIndex = one === word ? 0 : -1; });
  }

  #move(event) {
    const { words } = this;
    const place = words.indexOf(event.target);
    const next = { ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: words.length - 1 }[event.key];
    if (event.key === "Escape" && this.#kept) this.release();
    if (place < 0 || next === undefined) return;
    event.preventDefault();
    words[Math.min(words.length - 1, Math.max(0, next))].focus();
  }
}
