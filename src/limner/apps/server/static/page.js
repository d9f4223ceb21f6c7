// The page: views by the fragment of the address, the models of the service, and its API key.

import { get, setKey } from "./api.js";
import { DescribeView } from "./describe.js";
import { element } from "./parts.js";
import { SearchView } from "./search.js";
import { TranslateView } from "./translate.js";

const NAMES = ["describe", "translate", "search"];
const viewOf = (name) => document.getElementById(`view-${name}`);

const describe = new DescribeView(viewOf("describe"), (file) => translate.offerImage(file));
const translate = new TranslateView(viewOf("translate"));
const search = new SearchView(viewOf("search"));

/** Show the view that the address names. */
function route() {
  const requested = location.hash.slice(1);
  const name = NAMES.includes(requested) ? requested : "describe";
  for (const one of NAMES) viewOf(one).hidden = one !== name;
  document.querySelectorAll("nav a").forEach((link) => {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  });
  document.title = `${name[0].toUpperCase()}${name.slice(1)} · Limner`;
}

/** Read the models and folders of the service, and pass them to the views. */
async function connect() {
  const notice = document.getElementById("notice");
  notice.hidden = true;
  try {
    const { data, indexes = [] } = await get("v1/models");
    describe.offer(data.filter((model) => model.task === "describe"));
    translate.offer(data.filter((model) => model.task === "translate"));
    search.offer(indexes);
    document.getElementById("served").textContent = `Served: ${data.map((model) => model.id).join(", ") || "no model"}.`;
  } catch (error) {
    notice.replaceChildren(...(error.status === 401 ? keyForm() : problem(error)));
    notice.hidden = false;
  }
}

function problem(error) {
  const button = element("button", { type: "button", className: "button", textContent: "Try again", onclick: connect });
  return [element("p", { textContent: error.message }), element("p", { className: "buttons" }, button)];
}

function keyForm() {
  const field = element("input", { type: "password", id: "api-key", autocomplete: "off", required: true });
  const submit = element("button", { className: "button primary", textContent: "Use this key" });
  const form = element("form", {}, element("label", { for: "api-key", textContent: "API key" }), field, submit);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    setKey(field.value);
    connect();
  });
  return [element("p", { textContent: "This service asks for an API key. It is kept until this tab is closed." }), form];
}

addEventListener("hashchange", route);
addEventListener("dragover", (event) => event.preventDefault()); // a file dropped elsewhere does not replace the page
addEventListener("drop", (event) => event.preventDefault());
route();
connect();
