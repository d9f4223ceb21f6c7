// Images of the user: dropped, pasted, chosen or photographed.

import { ApiError } from "./api.js";

const SMALL_SIDE = 1600; // longer side of a smaller copy in pixels

/** A part of the page that takes an image and shows it. */
export class ImageInput {
  #url = null;

  /**
   * @param root element with file inputs and, optionally, `.drop`, `.stage` and `.below`.
   * @param onImage called with the file.
   * @param onError called with an error if something else was given.
   */
  constructor(root, onImage, onError) {
    [this.root, this.onImage, this.onError, this.file] = [root, onImage, onError, null];
    this.stage = root.querySelector(".stage");
    root.querySelectorAll("input[type=file]").forEach((input) => input.addEventListener("change", () => {
      this.take(input.files[0]);
      input.value = "";
    }));
    const view = root.closest(".view");
    view.addEventListener("dragover", (event) => {
      event.preventDefault();
      root.classList.add("dragging");
    });
    view.addEventListener("dragleave", (event) => {
      if (!view.contains(event.relatedTarget)) root.classList.remove("dragging");
    });
    view.addEventListener("drop", (event) => {
      event.preventDefault();
      root.classList.remove("dragging");
      this.take(event.dataTransfer.files[0]);
    });
    document.addEventListener("paste", (event) => {
      const file = event.clipboardData?.files[0];
      if (file && !view.hidden) this.take(file);
    });
  }

  /** Take a file, show it, and pass it on. */
  async take(file) {
    if (!file) {
      this.onError(new ApiError(400, "expected an image file; drop one from a folder, not from another page"));
    } else if (!file.type.startsWith("image/")) {
      this.onError(new ApiError(415, `${file.name}: expected an image, got ${file.type || "a file of another kind"}`));
    } else {
      await this.show(file);
      this.onImage(file);
    }
  }

  /** Show a file in place of the present one. */
  async show(file) {
    this.file = file;
    const image = this.stage.querySelector("img");
    if (this.#url) URL.revokeObjectURL(this.#url);
    this.#url = URL.createObjectURL(file);
    image.src = this.#url;
    image.alt = file.name ? `Your image ${file.name}` : "Your image";
    this.#reveal(true);
    await image.decode().catch(() => { image.alt = "The browser cannot show this image"; });
    this.stage.style.setProperty("--shape", image.naturalHeight ? image.naturalWidth / image.naturalHeight : 1.5);
  }

  /** Show a copy of the image, a JPEG file whose longer side has at most 1,600 pixels, in its place. */
  async shrink() {
    const bitmap = await createImageBitmap(this.file);
    const scale = Math.min(1, SMALL_SIDE / Math.max(bitmap.width, bitmap.height));
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [bitmap.width, bitmap.height].map((side) => Math.max(1, Math.round(side * scale)));
    canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    const blob = await new Promise((resolve) => { canvas.toBlob(resolve, "image/jpeg", 0.9); });
    await this.show(new File([blob], this.file.name || "image.jpg", { type: "image/jpeg" }));
  }

  /** Remove the image. */
  remove() {
    this.file = null;
    this.#reveal(false);
  }

  #reveal(shown) {
    const had = this.root.contains(document.activeElement);
    this.stage.hidden = !shown;
    for (const [name, hidden] of [[".drop", shown], [".below", !shown]]) {
      const part = this.root.querySelector(name);
      if (part) part.hidden = hidden;
    }
    if (had) this.root.querySelector(shown ? ".below .choose" : ".drop .choose")?.focus();
  }
}

/** Encode a file as data URL. */
export function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new ApiError(400, `${file.name}: the file cannot be read`));
    reader.readAsDataURL(file);
  });
}
