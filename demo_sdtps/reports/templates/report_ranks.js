// The tables by return pattern, the worst queries, and the filters of the rank lists.
const filters = { identity: byId("by-identity"), camera: byId("by-camera"), sort: byId("sort"), failures: byId("failures") };

const sampleOf = (query) => DATA.samples[query.sample];
const precision = (query) => (query.ap === null ? "no match, not scored" : `AP ${percent(query.ap)} %`);

function queryFigure(query) {
  const first = query.first ? [`first hit at rank ${query.first}`] : [];
  return figure(query.sample, "query", element("b", "", precision(query)), nameOf(query.sample), ...first);
}

function nearFigure([sample, distance, isHit], place) {
  const mark = element("span", isHit ? "hit" : "miss", `${place + 1}\u00a0${isHit ? "✓" : "✗"}`);
  return figure(sample, isHit ? "is-hit" : "is-miss", mark, element("b", "", `d = ${distance.toFixed(4)}`), nameOf(sample));
}

function fill(select, values) {
  [...new Set(values)].sort((a, b) => a - b).forEach((value) => select.append(new Option(value)));
}

const ORDERS = {
  lowest: (a, b) => (a.ap ?? 2) - (b.ap ?? 2),
  highest: (a, b) => (b.ap ?? -1) - (a.ap ?? -1),
  order: () => 0,
};

function chosenQueries() {
  return DATA.queries
    .filter((query) => !filters.identity.value || sampleOf(query).identity === +filters.identity.value)
    .filter((query) => !filters.camera.value || sampleOf(query).camera === +filters.camera.value)
    .filter((query) => !filters.failures.checked || query.first > 1)
    .sort(ORDERS[filters.sort.value]);
}

fill(filters.identity, DATA.queries.map((query) => sampleOf(query).identity));
fill(filters.camera, DATA.queries.map((query) => sampleOf(query).camera));
byId("worst-list").append(...DATA.worst.map((place) => {
  const query = DATA.queries[place];
  return element("article", "", queryFigure(query), element("div", "near", ...query.nearest.slice(0, 3).map(nearFigure)));
}));

for (const input of document.querySelectorAll("[name=pattern], [name=compared]")) {
  input.addEventListener("change", () => {
    for (const table of document.querySelectorAll(`.missing[data-name=${input.name}]`)) {
      table.hidden = table.dataset.pattern !== input.value;
    }
  });
}
