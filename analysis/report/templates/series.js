// Throughput, sequence numbers and round-trip times over time, side by side, drawn when a target is opened.
const PANEL = { width: 210, height: 130 };
const QUANTITIES = [
  ["rate", "throughput [Mbit/s]"],
  ["sequence", "received [MB]"],
  ["rtt", "RTT [ms]"],
];

const pointsOf = (download, quantity, width) =>
  quantity === "rate" ? download.rate.map((value, index) => [(index + 0.5) * width, value]) : download[quantity];

const drawRun = (place, run) => {
  const all = (quantity) => run.downloads.flatMap((one) => pointsOf(one, quantity, run.bin_s));
  const end = extent(all("sequence").map(([x]) => x))[1];
  const along = axis("time [s]", 0, end);
  const rows = QUANTITIES.map(([quantity, label]) => {
    const handshakes = quantity === "rtt" ? run.downloads.map((one) => one.handshake_rtt ?? 0) : [];
    const highest = extent([...all(quantity).map(([, y]) => y), ...handshakes])[1];
    return [quantity, axis(label, 0, highest * 1.05)];
  });
  for (const download of run.downloads) {
    const { name } = download;
    const card = make("div", "download");
    card.append(make("b", "", name));
    for (const [quantity, upwards] of rows) {
      const panel = new Panel(card, { x: along, y: upwards, ...PANEL });
      panel.svg.setAttribute("aria-label", `${name}: ${upwards.label} over time`);
      for (const other of quantity === "rtt" ? [] : run.downloads) {
        panel.line(pointsOf(other, quantity, run.bin_s), { stroke: "var(--grid)", width: 0.8 });
      }
      const told = pointsOf(download, quantity, run.bin_s).map(([x, y]) => [x, y, `${name}: ${short(y)} at ${short(x)} s`]);
      if (quantity === "rtt") {
        if (download.handshake_rtt !== null) panel.rule(download.handshake_rtt, { vertical: false, className: "rule dashed" });
        panel.dots(told, { stroke: "var(--transfer)", size: 2.5 });
        if (!told.length) panel.say("only the handshake's");
      } else {
        panel.line(told, { stroke: "var(--transfer)" });
      }
      if (quantity === "sequence") {
        const again = download.retransmitted.map(([x, y]) => [x, y, `${name}: retransmitted at ${short(x)} s`]);
        panel.dots(again, { stroke: "var(--bad)", size: 4, opacity: 1 });
      }
    }
    place.append(card);
  }
};

for (const target of document.querySelectorAll("details.target")) {
  target.addEventListener("toggle", () => {
    for (const place of target.open ? target.querySelectorAll(".series:empty") : []) {
      drawRun(place, data.series[place.dataset.series]);
    }
  });
}
