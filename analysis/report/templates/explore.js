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
  [16, [0.1, 0.3, 1, 3, 10]],
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
const search = document.getElementById("filter");
const column = (kind) => 1 + KINDS.indexOf(kind);
const nameOf = (row, kind) => data.names[kind][row[column(kind)]] ?? "not known";
const hasWords = (text) => text.toLowerCase().includes(search.value.trim().toLowerCase());
const isKept = (row) =>
  Object.entries(filters).every(([kind, box]) => !box.value || nameOf(row, kind) === box.value) &&
  (found.has(nameOf(row, "domain")) || hasWords(`${nameOf(row, "domain")} ${nameOf(row, "provider")}`));
// The pairs that the filters keep, all and per comparison: made anew by each change of a filter.
let kept = [];
let keptOf = [];
// The domains of the targets with these words: of causes the pairs know nothing.
let found = new Set();
const keepPairs = () => {
  const targets = [...document.querySelectorAll(".target")].filter((one) => hasWords(one.dataset.find));
  found = new Set(targets.map((one) => one.querySelector("b").textContent));
  kept = data.points.filter(isKept);
  keptOf = data.comparisons.map(() => []);
  for (const row of kept) keptOf[row[COMPARISON]].push(row);
};
// What a pair's limiter is of, beside the filter while it or the colours split the pairs by it.
const limiterNote = () =>
  filters.limiter.value || controls.colour.value === "limiter"
    ? "; limiter of a pair: of the reference's twin in a noise floor, or without one of the reference, whose luck tells the parts, too; of a target: of any of its downloads"
    : "";
const isFiltered = () => search.value.trim() !== "" || Object.values(filters).some((box) => box.value);

// [lower bound, upper bound] of the speed-up of the chosen part; null if it is not known.
const speedup = (row) => {
  const part = controls.part.value;
  if (part === "") return [row[LOW] ?? 0, row[HIGH] ?? Infinity];
  const value = row[FIRST_PART + Number(part)];
  return value === null ? null : [value, value];
};
// A bound is drawn where it is; the tip tells that it is one. Of two censored downloads there is none.
const isPlaced = (value) => value !== null && (value[0] > 0 || value[1] < Infinity);
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
const byDomain = (pairs) => {
  const domains = new Map();
  for (const [row, value] of pairs) {
    const name = row[column("domain")];
    if (!domains.has(name)) domains.set(name, []);
    domains.get(name).push(value);
  }
  return domains;
};
const medianOf = (pairs) => middle([...byDomain(pairs).values()].map(middle));
const counted = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
// Pairs are [row, [lower bound, upper bound]]; both medians are the same where all speed-ups are known.
const medians = (pairs) => [0, 1].map((end) => medianOf(pairs.map(([row, bounds]) => [row, bounds[end]])));
const medianText = (pairs) => {
  if (!pairs.length) return "–";
  const [least, most] = medians(pairs);
  if (least === most) return Number.isFinite(least) ? least.toFixed(2) : "∞";
  if (most === Infinity) return least > 0 ? `>${least.toFixed(2)}` : "?";
  return least > 0 ? `${least.toFixed(2)}…${most.toFixed(2)}` : `<${most.toFixed(2)}`;
};
const noteOf = (pairs) => {
  const domains = new Set(pairs.map(([row]) => row[column("domain")])).size;
  const runs = `${counted(domains, "domain")}, ${counted(pairs.length, "run")}`;
  return pairs.length ? `${runs}; median ${medianText(pairs)}` : runs;
};

const speedupAxis = () => {
  const far = data.points.map(speedup).filter(isPlaced).map((value) => Math.exp(Math.abs(Math.log(placeOf(value)))));
  far.sort((a, b) => a - b);
  const farthest = far[Math.floor(INSIDE * (far.length - 1))] ?? 1;
  const [reach, ticks] = REACHES.find(([value]) => value >= farthest) ?? REACHES.at(-1);
  return axis("speed-up", 1 / reach, reach, { log: true, ticks });
};

const distribution = (panel, rows, look) => {
  const values = rows.map((row) => [speedup(row), row]).filter(([value]) => isPlaced(value));
  values.sort((a, b) => placeOf(a[0]) - placeOf(b[0]));
  if (!values.length) return;
  const points = values.map(([value, row], index) => {
    const share = (index + 1) / values.length;
    return [placeOf(value), share, look.text && `${describe(row, value)} · ${Math.round(100 * share)} % are not above it`];
  });
  panel.line([[points[0][0], 0, ""], ...points], { ...look, steps: true });
  if (!look.text) return;
  // The printed median counts each domain once, the curve each pair: its place on the curve is not at one half.
  const [at, most] = medians(rows.map((row) => [row, speedup(row)]));
  if (at !== most) return;
  const share = values.filter(([value]) => placeOf(value) <= at).length / values.length;
  panel.cross(at, share, { ...look, tip: `median of the domains: ${short(at)}` });
};

const drawPanels = () => {
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
    const rows = keptOf[index].filter(speedup);
    const isDrawn = (row) => isPlaced(speedup(row));
    if (!data.points.some((row) => row[COMPARISON] === index)) return;
    const head = { title: comparison.name, note: noteOf(rows.map((row) => [row, speedup(row)])) };
    const cdf = new Panel(cdfs, { ...head, x: across, y: shares });
    cdf.rule(1);
    if (!floors.has(index)) distribution(cdf, floor, { stroke: "var(--grid)", width: 3 });
    const cloud = new Panel(clouds, { ...head, x: along, y: { ...across, label: "speed-up" } });
    cloud.rule(1, { vertical: false });
    for (const [, number, members] of groupsOf(rows)) {
      const look = { stroke: colour(number), dash: DASHES[number % DASHES.length], text: true };
      distribution(cdf, members, look);
      const dots = members.filter((row) => path(row) > 0 && isDrawn(row)).map((row) => {
        const value = speedup(row);
        return [path(row), placeOf(value), `${describe(row, value)} · ${label} ${short(path(row))}`];
      });
      cloud.dots(dots, look);
    }
    if (!rows.some(isDrawn)) [cdf, cloud].forEach((panel) => panel.say("nothing here"));
  });
  const named = groupsOf(kept).map(([name, number]) => [name, number]);
  for (const place of document.querySelectorAll("[data-drawn]")) legend(place, controls.colour.value ? named : []);
};

// Table 2 and the table of parts: of what the filters keep, numbers are counted again; tests are of all data only.
// Halves to the even number, and a share before its hundredfold, as in the tables; toFixed rounds halves up.
const whole = (value) => {
  const low = Math.floor(value), rest = value - low;
  return rest > 0.5 || (rest === 0.5 && low % 2) ? low + 1 : low;
};
const percent = (count, n) => (n ? (n < data.fewest ? `${count}/${n}` : String(whole(100 * (count / n)))) : "–");
const sideOf = ([low, high]) =>
  low === 1 && high === 1 ? "tie" : high <= 1 ? "slower" : low >= 1 ? "faster" : "undecided";
// The number of the bin; null for a bound that does not decide.
const binOf = ([low, high]) => {
  const first = data.bins.filter((edge) => edge <= low).length;
  const last = low === high ? first : data.bins.filter((edge) => edge < high).length;
  return first === last ? first : null;
};
// `≥` where others may be among them, too: `test` says of a domain whether it surely is, and whether it may be.
const orMore = (domains, test) => {
  const [sure, possible] = [0, 1].map((at) => domains.filter((bounds) => test(bounds)[at]).length);
  return (possible > sure ? "≥" : "") + percent(sure, domains.length);
};
const MARGIN = 1.02; // what counts as a gain, and its inverse as a loss
// In brackets for two equal configurations, which differ by chance alone.
const countedAgain = (pairs, isFloor) => {
  const sides = pairs.map(([, bounds]) => sideOf(bounds));
  const bins = pairs.map(([, bounds]) => binOf(bounds));
  const ofDomains = [...byDomain(pairs).values()].map((bounds) => [0, 1].map((end) => middle(bounds.map((one) => one[end]))));
  const ofDomainsThat = (test) => (isFloor ? `(${orMore(ofDomains, test)})` : orMore(ofDomains, test));
  const among = (list, wanted) => list.filter((one) => one === wanted).length;
  return (cell) => {
    const kind = cell.dataset.cell;
    if (kind === "n") return [String(pairs.length)];
    if (kind === "median") return [medianText(pairs)];
    if (kind === "domains") return [String(ofDomains.length)];
    if (kind === "gain") return [ofDomainsThat(([low, high]) => [low >= MARGIN, high >= MARGIN])];
    if (kind === "lose") return [ofDomainsThat(([low, high]) => [high <= 1 / MARGIN, low <= 1 / MARGIN])];
    if (kind === "bin" || ["faster", "slower", "undecided"].includes(kind)) {
      const count = kind === "bin" ? among(bins, Number(cell.dataset.bin)) : among(sides, kind);
      return [percent(count, pairs.length), 0.6 * Math.sqrt(count / Math.max(pairs.length, 1))];
    }
    if (kind === "known") return [String(pairs.filter(([row]) => row.slice(FIRST_PART, RTT).some((one) => one !== null)).length)];
    const part = FIRST_PART + Number(cell.dataset.part);
    const known = kind === "part" ? pairs.filter(([row]) => row[part] !== null) : [];
    return [medianText(known.map(([row]) => [row, [row[part], row[part]]]))];
  };
};
const ofAllData = new Map();
const countTables = () => {
  for (const line of document.querySelectorAll("tr[data-comparison]")) {
    const index = Number(line.dataset.comparison);
    const pairs = keptOf[index].map((row) => [row, [row[LOW] ?? 0, row[HIGH] ?? Infinity]]);
    const again = isFiltered() && countedAgain(pairs, data.comparisons[index].role === "noise_floor");
    for (const cell of line.querySelectorAll("td[data-cell]")) {
      if (!ofAllData.has(cell)) ofAllData.set(cell, [cell.textContent, cell.style.getPropertyValue("--h")]);
      const [text, heat] = again ? again(cell) : ofAllData.get(cell);
      cell.textContent = text;
      if (heat !== undefined && heat !== "") cell.style.setProperty("--h", heat);
    }
  }
  for (const note of document.querySelectorAll(".when-filtered")) note.hidden = !isFiltered();
  for (const note of document.querySelectorAll(".when-whole")) note.hidden = isFiltered();
};

// The choice is in the address, so that it can be sent and bookmarked.
const choices = { ...filters, ...controls, find: search };
const keepAddress = () => {
  const query = new URLSearchParams();
  for (const [name, box] of Object.entries(choices)) if (box.value && box.value !== box.dataset.usual) query.set(name, box.value);
  const text = query.size ? `?${query}` : location.pathname;
  history.replaceState(null, "", text + location.hash);
};
const readAddress = () => {
  for (const [name, value] of new URLSearchParams(location.search)) {
    const box = choices[name];
    if (box && (box === search || [...box.options].some((option) => option.value === value))) box.value = value;
  }
};

const MOST_TARGETS = 50;
let allTargets = false;
const applyFilters = () => {
  keepPairs();
  drawPanels();
  countTables();
  const chosen = Object.entries(filters).filter(([, box]) => box.value);
  let shown = 0;
  for (const part of document.querySelectorAll("[data-vantage]")) {
    const fits = ([kind, box]) => !(kind in part.dataset) || JSON.parse(part.dataset[kind]).includes(box.value);
    const words = part.dataset.find ?? (part.matches("tr") ? part.textContent : search.value);
    part.hidden = !chosen.every(fits) || !hasWords(words);
    part.classList.toggle("later", part.matches(".target") && !part.hidden && ++shown > MOST_TARGETS && !allTargets);
  }
  for (const place of document.querySelectorAll("[data-count]")) {
    const all = [...place.closest("details, section").querySelectorAll(place.dataset.count)];
    const shownHere = all.filter((one) => !one.hidden).length;
    const total = all.length + Number(place.dataset.more ?? 0);
    place.textContent = shownHere === all.length ? String(total) : `${shownHere} of ${total}`;
  }
  document.getElementById("more-targets").hidden = allTargets || shown <= MOST_TARGETS;
  document.getElementById("kept").textContent = `${kept.length} of ${counted(data.points.length, "pair")}, ${counted(shown, "target")}${limiterNote()}`;
  keepAddress();
};

document.getElementById("filters").hidden = false;
for (const [kind, box] of Object.entries(filters)) {
  for (const name of data.names[kind]) box.append(new Option(name, name));
  box.parentNode.hidden = data.names[kind].length < 2;
}
for (const option of [...controls.colour.options]) if (option.value && data.names[option.value].length < 2) option.remove();
for (const box of Object.values(controls)) box.dataset.usual = box.value;
for (const box of Object.values(choices)) box.addEventListener(box === search ? "input" : "change", applyFilters);
document.getElementById("reset").addEventListener("click", () => {
  for (const box of [...Object.values(filters), search]) box.value = "";
  applyFilters();
});
document.getElementById("more-targets").addEventListener("click", () => {
  allTargets = true;
  applyFilters();
});
readAddress();
applyFilters();
