// Sorting, and opening what a link or a printer needs. Tables, forest plot and figures are whole without it.
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
      const [x, y] = [parseFloat(text(a)), parseFloat(text(b))];
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
const openFragment = () => {
  const place = document.getElementById(location.hash.slice(1));
  if (place && place.tagName === "DETAILS") { place.open = true; place.scrollIntoView(); }
};
addEventListener("hashchange", openFragment);
openFragment();
addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details:not(.target)")) details.open = true;
});
