// Plots in the colours of the page.
const PALETTE = DATA.palette;
const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "triangle-down", "cross"];
// Colour and symbol of one of many, a pair of its own for each of 36.
const kind = (place) => ({ color: PALETTE.series[place % 6], symbol: SYMBOLS[(place + Math.floor(place / 6)) % 6] });
const CONFIG = { displayModeBar: false };
// A finger that is drawn over a plot scrolls the page.
const DRAG = matchMedia("(pointer: coarse)").matches ? false : "zoom";

const axis = (title, more = {}) => ({
  title: { text: title }, gridcolor: colour("grid"), linecolor: colour("line"), zerolinecolor: colour("line"), automargin: true,
  ...more,
});

const coloured = (title, color) => axis(title, { title: { text: title, font: { color } }, tickfont: { color } });

function layout(x, y, more = {}) {
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 50, r: 15, t: 10, b: 45 }, dragmode: DRAG,
    font: { family: "system-ui, sans-serif", size: 13, color: colour("text") },
    hoverlabel: { bgcolor: colour("card"), bordercolor: colour("line"), font: { color: colour("text") } },
    legend: { orientation: "h", traceorder: "normal", x: 0, y: 1.02, yanchor: "bottom" }, xaxis: axis(x), yaxis: axis(y), ...more,
  };
}

function plot(id, build) {
  const draw = () => Plotly.react(byId(id), ...build(), CONFIG);
  draw();
  redraws.push(draw);
  // As wide as its card, in the same frame, whatever changes the card; Plotly's `responsive` is late and sees the window alone.
  new ResizeObserver(() => Plotly.relayout(byId(id), { autosize: true })).observe(byId(id));
}

const withLoss = ({ records }) => records.filter((record) => "loss" in record);
const evaluated = ({ records }) => records.filter((record) => "patterns" in record);
const trained = withLoss(DATA.runs[0]);
const tested = evaluated(DATA.runs[0]);
const epochs = (records) => records.map((record) => record.epoch);

plot("training", () => [[
  { x: epochs(trained), y: trained.map((record) => record.loss), name: "loss", line: { color: colour("text") },
    hovertemplate: "%{y:.3f}" },
  { x: epochs(trained), y: trained.map((record) => 100 * record.accuracy), name: "accuracy", yaxis: "y2",
    line: { color: PALETTE.plain, dash: "dash" }, hovertemplate: "%{y:.1f} %" },
], layout("epoch", "loss", {
  showlegend: false, hovermode: "x unified", yaxis: axis("loss"),
  yaxis2: { ...coloured("accuracy, %", PALETTE.plain), overlaying: "y", side: "right", range: [0, 100], dtick: 20, showgrid: false,
    tickmode: "linear" },
})]);

plot("testing", () => [["mAP", "Rank-1"].flatMap((measure) => DATA.patterns.map((name, pattern) => ({
  x: epochs(tested), y: tested.map((record) => 100 * record.patterns[pattern + 1][measure]), name, legendgroup: pattern,
  showlegend: measure === "mAP", line: { color: PALETTE.patterns[pattern], dash: measure === "mAP" ? "solid" : "dot" },
  hovertemplate: `${measure} %{y:.1f} %`,
}))), layout("epoch", "%", {
  hovermode: "x unified", yaxis: axis("%", { range: [0, 100] }),
})]);

if (DATA.runs.length > 1) {
  const plain = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;"); // Plotly reads tags in names
  const lines = (text) => text.match(/.{1,34}/g).map(plain).join("<br>"); // as long as a phone is wide
  const curves = (recordsOf, value, title) => [DATA.runs.map((run, place) => ({
    x: epochs(recordsOf(run)), y: recordsOf(run).map(value), name: lines(run.name), mode: "lines+markers", hovertemplate: "%{y:.1f}",
    marker: { size: 8, ...kind(place) }, line: { color: kind(place).color },
  })), layout("epoch", title, { hovermode: "x unified" })];
  const pattern = () => document.querySelector("[name=compared]:checked").value;
  plot("compared-loss", () => curves(withLoss, (record) => record.loss, "loss"));
  plot("compared-map", () => curves(evaluated, (record) => 100 * record.patterns[pattern()].mAP, "mAP, %"));
  const redraw = redraws[redraws.length - 1];
  for (const input of document.getElementsByName("compared")) input.addEventListener("change", redraw);
}

// The scatter plot: a trace per colour, then rings around the samples of the chosen one's identity.
const scatter = byId("scatter-plot");
const chosen = (name) => document.querySelector(`[name=${name}]:checked`).value;
let point = -1; // place in DATA.scatter.samples

function scatterTraces() {
  const places = DATA.scatter[chosen("method")];
  const samples = DATA.scatter.samples.map((index) => DATA.samples[index]);
  const everything = samples.map((_, place) => place);
  const by = chosen("colour");
  const trace = (members, more) => ({
    mode: "markers", x: members.map((place) => places[place][0]), y: members.map((place) => places[place][1]),
    customdata: members, text: members.map((place) => nameOf(DATA.scatter.samples[place])), hovertemplate: "%{text}<extra></extra>",
    ...more,
  });
  const values = [...new Set(samples.map((sample) => sample[by]))].sort((a, b) => a - b);
  const traces = by === "camera"
    ? values.map((camera, place) => trace(everything.filter((one) => samples[one].camera === camera),
      { name: `camera ${camera}`, marker: { size: 7, ...kind(place) } }))
    : [trace(everything, { showlegend: false, marker: { size: 7,
      color: samples.map((sample) => kind(values.indexOf(sample.identity)).color),
      symbol: samples.map((sample) => kind(values.indexOf(sample.identity)).symbol) } })];
  const same = everything.filter((one) => point >= 0 && samples[one].identity === samples[point].identity);
  return [...traces, trace(same, { showlegend: false, hoverinfo: "skip", hovertemplate: null,
    marker: { size: same.map((one) => (one === point ? 18 : 13)), color: "rgba(0,0,0,0)", line: { width: 2, color: colour("text") } } })];
}

const bare = { showgrid: false, zeroline: false, showline: false, showticklabels: false, ticks: "" };
plot("scatter-plot", () => [scatterTraces(), layout("", "", {
  margin: { l: 10, r: 10, t: 10, b: 10 }, hovermode: "closest",
  xaxis: axis("", bare), yaxis: axis("", bare), uirevision: chosen("method"),
})]);
const drawScatter = redraws[redraws.length - 1];

function showPoint(place) {
  if (place === point) return;
  point = place;
  const index = DATA.scatter.samples[place];
  byId("point").replaceChildren(figure(index, "query", nameOf(index), DATA.samples[index].name));
  drawScatter();
}

for (const name of ["method", "colour"]) {
  for (const input of document.getElementsByName(name)) input.addEventListener("change", drawScatter);
}
for (const event of ["plotly_hover", "plotly_click"]) scatter.on(event, ({ points }) => showPoint(points[0].customdata));
scatter.addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const many = DATA.scatter.samples.length;
  showPoint(point < 0 ? 0 : (point + step + many) % many);
});
