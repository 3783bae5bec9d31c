// Filters, and the speed-ups of what they keep: distributions, and against the path.
const data = JSON.parse(document.getElementById("data").textContent);
const KINDS = ["vantage", "provider", "limiter", "domain"];
const [COMPARISON, ITERATION, LOW, HIGH, FIRST_PART, RTT, SIZE, BDP] = [0, 5, 6, 7, 8, 11, 12, 13];
// The drawings reach this far on both sides of 1, with these ticks: the first that holds 98 % of the pairs.
const REACHES = [
  [1.25, [0.8, 0.9, 1, 1.1, 1.25]],
  [1.5, [0.7, 0.8, 1, 1.2, 1.5]],
  [2, [0.5, 0.7, 1, 1.4, 2]],
  [3, [0.4, 0.6, 1, 1.5, 2.5]],
  [4, [0.25, 0.5, 1, 2, 4]],
  [16, [0.0625, 0.25, 1, 4, 16]],
];
const INSIDE = 0.98;
const PATHS = {
  rtt: ["handshake RTT [ms]", (row) => row[RTT]],
  size: ["size [MB]", (row) => row[SIZE] && row[SIZE] / 1e6],
  bdp: ["BDP / 64 kB", (row) => row[BDP]],
};

const filters = Object.fromEntries(KINDS.slice(0, 3).map((kind) => [kind, document.getElementById(`by-${kind}`)]));
const controls = Object.fromEntries(
  ["part", "colour", "against"].map((name) => [name, document.getElementById(`show-${name}`)]),
);
const column = (kind) => 1 + KINDS.indexOf(kind);
const nameOf = (row, kind) => data.names[kind][row[column(kind)]] ?? "not known";
const isKept = (row) => Object.entries(filters).every(([kind, box]) => !box.value || nameOf(row, kind) === box.value);

// [lower bound, upper bound] of the speed-up of the chosen part; null if it is not known.
const speedup = (row) => {
  const part = controls.part.value;
  if (part === "") return [row[LOW] ?? 0, row[HIGH] ?? Infinity];
  const value = row[FIRST_PART + Number(part)];
  return value === null ? null : [value, value];
};
// A bound is drawn where it is; the tip tells that it is one.
const placeOf = ([low, high]) => (low > 0 ? low : high);
const words = ([low, high]) => (low === high ? short(low) : high === Infinity ? `above ${short(low)}` : `below ${short(high)}`);
const describe = (row, value) =>
  `${words(value)} · ${nameOf(row, "domain")} (${nameOf(row, "provider")}), ${nameOf(row, "vantage")}, iteration ${row[ITERATION]}`;

const groupsOf = (rows) => {
  const kind = controls.colour.value;
  if (!kind) return [["all", 0, rows]];
  const names = data.names[kind];
  return [...names, "not known"]
    .map((name, index) => [name, index, rows.filter((row) => (row[column(kind)] ?? names.length) === index)])
    .filter(([, , members]) => members.length);
};
const middle = (values) => {
  const logs = values.map(Math.log).sort((a, b) => a - b);
  const half = logs.length / 2;
  return Math.exp((logs[Math.ceil(half) - 1] + logs[Math.floor(half)]) / 2);
};
// Each domain counts once, with the median of its pairs, as in Table 2. Pairs are [row, speed-up].
const medianOf = (pairs) => {
  const domains = new Map();
  for (const [row, value] of pairs) {
    const name = row[column("domain")];
    if (!domains.has(name)) domains.set(name, []);
    domains.get(name).push(value);
  }
  return middle([...domains.values()].map(middle));
};
const noteOf = (pairs) => (pairs.length ? `n = ${pairs.length}, median ${medianOf(pairs).toFixed(2)}` : "n = 0");

const speedupAxis = () => {
  const far = data.points.map(speedup).filter(Boolean).map((value) => Math.exp(Math.abs(Math.log(placeOf(value)))));
  far.sort((a, b) => a - b);
  const farthest = far[Math.floor(INSIDE * (far.length - 1))] ?? 1;
  const [reach, ticks] = REACHES.find(([value]) => value >= farthest) ?? REACHES.at(-1);
  return axis("speed-up", 1 / reach, reach, { log: true, ticks });
};

const distribution = (panel, rows, look) => {
  const values = rows.map((row) => [speedup(row), row]).filter(([value]) => value);
  values.sort((a, b) => placeOf(a[0]) - placeOf(b[0]));
  if (!values.length) return;
  const points = values.map(([value, row], index) => {
    const share = (index + 1) / values.length;
    return [placeOf(value), share, look.text && `${describe(row, value)} · ${Math.round(100 * share)} % are not above it`];
  });
  panel.line([[points[0][0], 0, ""], ...points], { ...look, steps: true });
};

const drawPanels = () => {
  const kept = data.points.filter(isKept);
  const floors = new Set(data.comparisons.flatMap((one, index) => (one.role === "noise_floor" ? [index] : [])));
  const floor = kept.filter((row) => floors.has(row[COMPARISON]));
  const [cdfs, clouds] = ["cdfs", "clouds"].map((id) => document.getElementById(id));
  const [label, path] = PATHS[controls.against.value];
  const paths = data.points.map(path).filter((value) => value > 0);
  const across = speedupAxis();
  const shares = axis("share of pairs", 0, 1, { ticks: [0, 0.5, 1] });
  const [nearest, farthest] = extent(paths);
  const along = axis(label, nearest / 1.1, farthest * 1.1, { log: true });
  cdfs.replaceChildren();
  clouds.replaceChildren();
  data.comparisons.forEach((comparison, index) => {
    const rows = kept.filter((row) => row[COMPARISON] === index && speedup(row));
    if (!data.points.some((row) => row[COMPARISON] === index)) return;
    const head = { title: comparison.name, note: noteOf(rows.map((row) => [row, placeOf(speedup(row))])) };
    const cdf = new Panel(cdfs, { ...head, x: across, y: shares });
    cdf.rule(1);
    if (!floors.has(index)) distribution(cdf, floor, { stroke: "var(--grid)", width: 3 });
    const cloud = new Panel(clouds, { ...head, x: along, y: { ...across, label: "speed-up" } });
    cloud.rule(1, { vertical: false });
    for (const [, number, members] of groupsOf(rows)) {
      const look = { stroke: colour(number), dash: DASHES[number % DASHES.length], text: true };
      distribution(cdf, members, look);
      const dots = members.filter((row) => path(row) > 0).map((row) => {
        const value = speedup(row);
        return [path(row), placeOf(value), `${describe(row, value)} · ${label} ${short(path(row))}`];
      });
      cloud.dots(dots, look);
    }
    if (!rows.length) [cdf, cloud].forEach((panel) => panel.say("nothing here"));
  });
  const named = groupsOf(kept).map(([name, number]) => [name, number]);
  for (const place of document.querySelectorAll("[data-drawn]")) legend(place, controls.colour.value ? named : []);
};

// The median of what the filters keep, in the forest plot: a description, without an interval.
const markForest = () => {
  const isFiltered = Object.values(filters).some((box) => box.value);
  data.comparisons.forEach((comparison, index) => {
    const place = document.querySelector(`[data-comparison="${index}"] .kept`);
    if (!place) return;
    const rows = data.points.filter((row) => row[COMPARISON] === index && isKept(row));
    const pairs = rows.map((row) => [row, placeOf([row[LOW] ?? 0, row[HIGH] ?? Infinity])]);
    place.setAttribute("visibility", isFiltered && pairs.length ? "visible" : "hidden");
    if (!pairs.length) return;
    const [low, high] = data.axis;
    const share = Math.min(1, Math.max(0, (Math.log(medianOf(pairs)) - low) / (high - low)));
    place.setAttribute("cx", `${(100 * share).toFixed(2)}%`);
    place.firstElementChild.textContent = `what the filters keep: ${noteOf(pairs)}`;
  });
};

const applyFilters = () => {
  drawPanels();
  markForest();
  const words = document.getElementById("filter").value.toLowerCase();
  const chosen = Object.fromEntries(Object.entries(filters).map(([kind, box]) => [kind, box.value]));
  let shown = 0;
  for (const part of document.querySelectorAll("[data-vantage]")) {
    const fits = (kind) => !chosen[kind] || JSON.parse(part.dataset[kind] || "[]").includes(chosen[kind]);
    part.hidden = !Object.keys(chosen).every((kind) => !(kind in part.dataset) || fits(kind));
    if (part.matches(".target") && !part.dataset.find.toLowerCase().includes(words)) part.hidden = true;
    shown += part.matches(".target") && !part.hidden;
  }
  const pairs = data.points.filter(isKept).length;
  const many = `${shown} ${shown === 1 ? "target" : "targets"}`;
  document.getElementById("kept").textContent = `${pairs} of ${data.points.length} pairs, ${many}`;
};

document.getElementById("filters").hidden = false;
for (const [kind, box] of Object.entries(filters)) {
  for (const name of data.names[kind]) box.append(new Option(name, name));
  box.parentNode.hidden = data.names[kind].length < 2;
}
for (const option of [...controls.colour.options]) if (option.value && data.names[option.value].length < 2) option.remove();
for (const box of [...Object.values(filters), ...Object.values(controls)]) box.addEventListener("change", applyFilters);
document.getElementById("filter").addEventListener("input", applyFilters);
document.getElementById("reset").addEventListener("click", () => {
  for (const box of Object.values(filters)) box.value = "";
  document.getElementById("filter").value = "";
  applyFilters();
});
applyFilters();
