// The tables by return pattern, the worst queries, and the filters of the rank lists.
const filters = { identity: byId("by-identity"), camera: byId("by-camera"), sort: byId("sort"), failures: byId("failures") };

// The queries that have a rank list, by their number.
const QUERIES = new Map(DATA.rank_lists.map(({ query, nearest }) => [query, { ...DATA.queries[query], nearest }]));
const sampleOf = (query) => DATA.samples[query.sample];
const precision = (query) => (query.average_precision === null ? "no match, not scored" : `AP ${percent(query.average_precision)} %`);

function queryFigure(query) {
  const first = query.first_match ? [`first hit at rank ${query.first_match}`] : [];
  return figure(query.sample, "query", element("b", "", precision(query)), nameOf(query.sample), ...first);
}

function nearFigure({ sample, distance, is_match: isHit }, place) {
  const mark = element("span", isHit ? "hit" : "miss", `${place + 1}\u00a0${isHit ? "✓" : "✗"}`);
  return figure(sample, isHit ? "is-hit" : "is-miss", mark, element("b", "", distance.toFixed(4)), nameOf(sample));
}

function fill(select, values) {
  [...new Set(values)].sort((a, b) => a - b).forEach((value) => select.append(new Option(value)));
}

const ORDERS = {
  lowest: (a, b) => (a.average_precision ?? 2) - (b.average_precision ?? 2),
  highest: (a, b) => (b.average_precision ?? -1) - (a.average_precision ?? -1),
  order: () => 0,
};

function chosenQueries() {
  return [...QUERIES.values()]
    .filter((query) => !filters.identity.value || sampleOf(query).identity === +filters.identity.value)
    .filter((query) => !filters.camera.value || sampleOf(query).camera === +filters.camera.value)
    .filter((query) => !filters.failures.checked || query.first_match > 1)
    .sort(ORDERS[filters.sort.value]);
}

fill(filters.identity, [...QUERIES.values()].map((query) => sampleOf(query).identity));
fill(filters.camera, [...QUERIES.values()].map((query) => sampleOf(query).camera));
byId("worst-list").append(...DATA.worst_queries.map((number) => {
  const query = QUERIES.get(number);
  return element("article", "", queryFigure(query), element("div", "near", ...query.nearest.slice(0, 3).map(nearFigure)));
}));

for (const input of document.querySelectorAll("[name=pattern], [name=compared]")) {
  input.addEventListener("change", () => {
    for (const table of document.querySelectorAll(`.missing[data-name=${input.name}]`)) {
      table.hidden = table.dataset.pattern !== input.value;
    }
  });
}
