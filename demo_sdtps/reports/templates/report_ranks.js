// The worst queries, and rank lists with their filters.
const PER_PAGE = 10;
const filters = { identity: byId("by-identity"), camera: byId("by-camera"), sort: byId("sort"), failures: byId("failures") };
let page = 0;

const sampleOf = (query) => DATA.samples[query.sample];
const precision = (query) => (query.ap === null ? "no match, not scored" : `AP ${percent(query.ap)} %`);

function queryFigure(query) {
  const first = query.first ? [`first hit at rank ${query.first}`] : [];
  return figure(query.sample, "query", element("b", "", precision(query)), nameOf(query.sample), ...first);
}

function nearFigure([sample, distance, isHit], place) {
  const mark = element("span", isHit ? "hit" : "miss", `${place + 1}\u00a0${isHit ? "✓" : "✗"}`);
  return figure(sample, isHit ? "is-hit" : "is-miss", mark, element("b", "", `d = ${distance.toPrecision(3)}`), nameOf(sample));
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

function showRanks() {
  const found = chosenQueries();
  const pages = Math.max(1, Math.ceil(found.length / PER_PAGE));
  page = Math.min(Math.max(page, 0), pages - 1);
  const shown = found.slice(page * PER_PAGE, (page + 1) * PER_PAGE);
  byId("count").textContent = found.length
    ? `Queries ${page * PER_PAGE + 1} to ${page * PER_PAGE + shown.length} of ${found.length}`
    : "No query is left; reset the filters.";
  byId("pages").textContent = `Page ${page + 1} of ${pages}`;
  byId("previous").disabled = page === 0;
  byId("next").disabled = page === pages - 1;
  byId("rank-list").replaceChildren(...shown.map((query) =>
    element("article", "list", queryFigure(query), element("div", "near", ...query.nearest.map(nearFigure)))));
}

function turn(pages) {
  page += pages;
  showRanks();
  byId("ranks").scrollIntoView();
}

fill(filters.identity, DATA.queries.map((query) => sampleOf(query).identity));
fill(filters.camera, DATA.queries.map((query) => sampleOf(query).camera));
byId("filters").addEventListener("change", () => { page = 0; showRanks(); });
// After the controls have their first values again.
byId("filters").addEventListener("reset", () => setTimeout(() => { page = 0; showRanks(); }));
byId("filters").addEventListener("submit", (event) => event.preventDefault());
byId("previous").addEventListener("click", () => turn(-1));
byId("next").addEventListener("click", () => turn(1));
showRanks();

byId("worst-list").append(...DATA.worst.map((place) => {
  const query = DATA.queries[place];
  return element("article", "", queryFigure(query), element("div", "near", ...query.nearest.slice(0, 3).map(nearFigure)));
}));
