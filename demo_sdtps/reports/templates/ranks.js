// Rank lists in pages, of the queries that the filters leave: `chosenQueries`, drawn by `queryFigure` and `nearFigure`.
const PER_PAGE = 10;
let page = 0;

function showRanks() {
  const queries = chosenQueries();
  const pages = Math.max(1, Math.ceil(queries.length / PER_PAGE));
  page = Math.min(Math.max(page, 0), pages - 1);
  const shown = queries.slice(page * PER_PAGE, (page + 1) * PER_PAGE);
  byId("count").textContent = queries.length
    ? `Queries ${page * PER_PAGE + 1} to ${page * PER_PAGE + shown.length} of ${queries.length}`
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

for (const event of ["input", "change"]) byId("filters").addEventListener(event, () => { page = 0; showRanks(); });
// After the controls have their first values again.
byId("filters").addEventListener("reset", () => setTimeout(() => { page = 0; showRanks(); }));
byId("filters").addEventListener("submit", (event) => event.preventDefault());
byId("previous").addEventListener("click", () => turn(-1));
byId("next").addEventListener("click", () => turn(1));
showRanks();
