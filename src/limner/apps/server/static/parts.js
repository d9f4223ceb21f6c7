// Parts of the page that several views use: elements, progress, errors, announcements.

/** Create an element with properties, attributes (`data-…`, `aria-…`, `for`) and children. */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined) continue;
    if (name.includes("-") || name === "for" || name === "scope") made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

/** Announce a text to screen readers; the page shows it elsewhere. */
export function announce(text) {
  const region = document.getElementById("announcer");
  region.textContent = "";
  requestAnimationFrame(() => { region.textContent = text; });
}

/** Progress and errors of a view, shown where its results are. */
export class Status {
  #timer = 0;

  constructor(view) {
    this.progress = view.querySelector(".progress");
    this.failure = view.querySelector(".failure");
  }

  /** Show that something is computed. */
  busy(text) {
    this.clear();
    this.progress.querySelector(".label").textContent = text;
    this.progress.hidden = false;
  }

  clear() {
    clearInterval(this.#timer);
    this.progress.hidden = true;
    this.failure.hidden = true;
    this.failure.replaceChildren();
  }

  /**
   * Show an error with its remedies.
   *
   * @param retry repeats the request.
   * @param smaller repeats it with a smaller copy of the image, if there is one.
   */
  fail(error, { retry = null, smaller = null } = {}) {
    this.clear();
    const buttons = element("p", { className: "buttons" });
    const title = titleOf(error);
    this.failure.append(element("p", {}, element("strong", { textContent: title }), ` ${error.message}`), buttons);
    if (error.status === 413 && smaller) buttons.append(this.#button("Send a smaller copy", smaller));
    if (retry && [0, 408, 429, 500, 503, 504].includes(error.status ?? 0)) {
      const button = this.#button("Try again", retry);
      buttons.append(button);
      if (error.retryAfter) this.#countDown(button, error.retryAfter);
    }
    this.failure.hidden = false;
  }

  #button(text, action) {
    return element("button", { type: "button", className: "button", textContent: text, onclick: action });
  }

  #countDown(button, seconds) {
    const ends = performance.now() + 1000 * seconds;
    const update = () => {
      const left = Math.ceil((ends - performance.now()) / 1000);
      button.disabled = left > 0;
      button.textContent = left > 0 ? `Try again in ${left} s` : "Try again";
      if (left <= 0) clearInterval(this.#timer);
    };
    this.#timer = setInterval(update, 250);
    update();
  }
}

function titleOf(error) {
  if (error.status === 0) return "No connection.";
  if (error.status === 413) return "Too large.";
  if (error.status === 429) return "The service is busy.";
  return "This did not work:";
}

/** A command with a button that copies it. */
export function command(text) {
  const button = element("button", { type: "button", className: "button", textContent: "Copy" });
  button.setAttribute("aria-label", `Copy the command ${text}`);
  button.addEventListener("click", () => copy(text, button));
  return element("p", { className: "command" }, element("code", { textContent: text }), button);
}

/** Copy a text; the button shows it for a while. */
export async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const field = element("textarea", { value: text, className: "hidden" });
    document.body.append(field); // without a secure connection there is no clipboard of the first kind
    field.select();
    document.execCommand("copy");
    field.remove();
  }
  const before = button.textContent;
  button.textContent = "Copied";
  announce("Copied");
  setTimeout(() => { button.textContent = before; }, 1500);
}

/** Percentage of a fraction, without decimals. */
export function percent(fraction) {
  return `${Math.round(100 * fraction)} %`;
}
