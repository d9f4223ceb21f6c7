// The script of a report, after attention.js in one module: attention of words, filters, enlarged images.

document.querySelectorAll(".attended").forEach((figure) => {
  const map = new HeatMap(figure.querySelector(".stage"));
  const [grid, box] = [figure.dataset.grid, figure.dataset.box].map((numbers) => numbers.split(" ").map(Number));
  const words = figure.querySelector(".words");
  const note = figure.querySelector("figcaption");
  const hint = note.textContent;
  new WordBar(words, (word) => {
    const weights = word ? decodeWeights(word.dataset.weights) : null;
    if (weights) map.show(weights, grid, box);
    else map.clear();
    note.textContent = weights ? [`${word.textContent}: attention ${regionOf(weights, grid)}`, word.title].filter(Boolean).join(", ") : hint;
  });
  figure.hidden = false;
});

// What is scrolled sideways on a narrow screen is scrolled with the keyboard, too.
document.querySelectorAll(".wide, .matrix").forEach((part) => {
  if (part.scrollWidth > part.clientWidth) part.tabIndex = 0;
});

(() => {
  const viewer = document.getElementById("viewer");
  const shown = viewer.querySelector(".shown");
  const place = viewer.querySelector(".place");
  let items = [];
  let current = 0;

  const visible = (gallery) => [...gallery.querySelectorAll(".item")].filter((item) => item.checkVisibility());

  function show(number) {
    current = (number + items.length) % items.length;
    const copy = items[current].cloneNode(true);
    copy.removeAttribute("id");
    copy.querySelectorAll("details").forEach((details) => { details.open = true; });
    copy.querySelectorAll(".enlarge").forEach((link) => link.replaceWith(...link.childNodes));
    shown.replaceChildren(...copy.childNodes);
    place.textContent = `${current + 1} of ${items.length}`;
    viewer.scrollTop = 0;
  }

  document.querySelectorAll(".gallery").forEach((gallery) => {
    const search = gallery.querySelector(".search");
    const field = search.querySelector("input");
    const status = search.querySelector("[role=status]");
    const update = () => {
      const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      gallery.querySelectorAll(".item").forEach((item) => {
        const text = item.textContent.toLowerCase();
        item.hidden = !words.every((word) => text.includes(word));
      });
      status.textContent = `${visible(gallery).length} shown`;
    };
    search.hidden = false;
    field.addEventListener("input", update);
    gallery.addEventListener("change", update);
    gallery.addEventListener("click", (event) => {
      const link = event.target.closest(".enlarge");
      if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      items = visible(gallery);
      show(items.indexOf(link.closest(".item")));
      viewer.showModal();
    });
    update();
  });

  viewer.querySelector(".previous").addEventListener("click", () => show(current - 1));
  viewer.querySelector(".next").addEventListener("click", () => show(current + 1));
  viewer.querySelector(".close").addEventListener("click", () => viewer.close());
  viewer.addEventListener("click", (event) => { if (event.target === viewer) viewer.close(); });
  viewer.addEventListener("keydown", (event) => {
    if (event.key === "ArrowLeft") show(current - 1);
    if (event.key === "ArrowRight") show(current + 1);
  });
  viewer.addEventListener("close", () => items[current]?.querySelector(".enlarge")?.focus());
})();
