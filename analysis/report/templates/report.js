// The number that a cell begins with; neither an address nor a domain is one.
const numberIn = (text) => (/^[-+]?\d+(\.\d+)?(?![\w.:-])/.test(text) ? parseFloat(text) : NaN);
// Sorting, data to download, rows that fold where a table is too wide, and opening what a link or a printer needs.
for (const heading of document.querySelectorAll("table.sortable thead tr:last-child th")) {
  heading.tabIndex = 0;
  heading.title = "sort";
  const sort = () => {
    const table = heading.closest("table");
    const column = heading.cellIndex;
    const descending = heading.getAttribute("aria-sort") === "ascending";
    for (const other of heading.parentNode.children) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
    const text = (row) => row.cells[column] ? row.cells[column].textContent.trim() : "";
    const compare = (a, b) => {
      const [x, y] = [numberIn(text(a)), numberIn(text(b))];
      if (!Number.isNaN(x) && !Number.isNaN(y)) return x - y;
      return text(a).localeCompare(text(b), "en", { numeric: true });
    };
    for (const body of table.tBodies) {
      const rows = [...body.rows].sort(compare);
      if (descending) rows.reverse();
      body.append(...rows);
    }
  };
  heading.addEventListener("click", sort);
  heading.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sort(); }
  });
}

// The data behind tables and drawings, as files: they are in this page, nothing is loaded.
const quoted = (value) => (/[",\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
// A space before what spreadsheets take for a formula, and run.
const inert = (value) => (/^[=+@-]/.test(value) && Number.isNaN(Number(value)) ? ` ${value}` : value);
const csvOf = (rows) => rows.map((row) => `${row.map((cell) => quoted(inert(String(cell ?? "")))).join(",")}\n`).join("");
const save = (name, text) => {
  const link = make("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  link.download = `${name.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "") || "data"}.csv`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000); // saving may begin late
};
const wordsOf = (cell) => [...cell.childNodes].map((node) => node.textContent.trim()).filter(Boolean).join(" ");
for (const place of document.querySelectorAll(".scroll")) {
  const button = make("button", "csv", "CSV");
  button.type = "button";
  button.addEventListener("click", () => {
    const rows = [...place.querySelectorAll("tr")].filter((row) => !row.hidden).map((row) => [...row.cells].map(wordsOf));
    const title = place.closest("details")?.querySelector("summary") ?? place.closest("section").querySelector("h2");
    const whole = place.dataset.csv && !(place.querySelector("[data-comparison]") && isFiltered());
    save(place.dataset.csv ?? wordsOf(title).slice(0, 60), whole ? data.csv[place.dataset.csv] : csvOf(rows));
  });
  place.before(button);
}
for (const button of document.querySelectorAll("[data-pairs]")) {
  button.addEventListener("click", () => {
    const head = ["comparison", ...KINDS, "iteration", "speedup_low", "speedup_high"];
    const parts = [...controls.part.options].slice(1).map((option) => option.textContent);
    const rows = kept.map((row) => [
      data.comparisons[row[COMPARISON]].name,
      ...KINDS.map((kind) => data.names[kind][row[column(kind)]]),
      ...row.slice(ITERATION),
    ]);
    save("pairs", csvOf([[...head, ...parts, "rtt_ms", "size_bytes", "bdp_64_kb"], ...rows]));
  });
}
document.querySelector("[data-figures]")?.addEventListener("click", () => save("figures", data.csv.figures));
for (const button of document.querySelectorAll("[data-run]")) {
  button.addEventListener("click", () => {
    const run = data.series[button.dataset.run];
    const rows = run.downloads.flatMap((one) =>
      ["rate", "sequence", "retransmitted", "rtt"].flatMap((kind) =>
        pointsOf(one, kind, run.bin_s).map(([x, y]) => [one.name, kind, x, y]),
      ),
    );
    save("series", csvOf([["configuration", "quantity", "time_s", "value"], ...rows]));
  });
}

// A row that is wider than its card becomes a heading with its cells below it, each after its column's name.
const fold = (place) => {
  const table = place.firstElementChild;
  table.classList.remove("folded");
  if (table.scrollWidth <= place.clientWidth) return;
  const names = [...(table.tHead?.rows[0]?.cells ?? [])].map(wordsOf);
  for (const row of table.tBodies[0].rows) {
    for (const cell of row.cells) cell.dataset.name = names[cell.cellIndex] ?? "";
  }
  table.classList.add("folded");
};
const widths = new Map();
const watch = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    if (widths.get(target) === target.clientWidth) continue;
    widths.set(target, target.clientWidth);
    fold(target);
  }
});
for (const place of document.querySelectorAll(".scroll")) watch.observe(place);

const openFragment = () => {
  const place = document.getElementById(location.hash.slice(1));
  if (place && place.tagName === "DETAILS") { place.open = true; place.scrollIntoView(); }
};
addEventListener("hashchange", openFragment);
openFragment();
addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details:not(.target)")) details.open = true;
});
