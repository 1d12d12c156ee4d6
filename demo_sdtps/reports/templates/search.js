// The hits of own images, and the filters of their queries.
const filters = { name: byId("by-name"), sort: byId("sort") };

// A triplet with a link to its first file, and what it lacks.
function fileFigure(index, className, ...lines) {
  const { name, files, camera } = DATA.samples[index];
  const link = element("a", "", name);
  [link.href, link.target] = [Object.values(files)[0], "_blank"];
  const absent = DATA.modalities.filter((modality) => !files[modality]);
  return figure(index, className, ...lines, link, ...(camera ? [`camera ${camera}`] : []), ...(absent.length ? [`without ${absent.join(", ")}`] : []));
}

const queryFigure = (query) => fileFigure(query.sample, "query", element("b", "", "query"));

function nearFigure([sample, distance, score, judged], place) {
  const ordered = score === null ? [] : [`s = ${score.toFixed(3)}`];
  const lines = [element("b", "", `${place + 1}: d = ${distance.toFixed(4)}`), ...ordered, ...(judged ? [judged] : [])];
  return fileFigure(sample, "", ...lines);
}

const first = (query) => query.nearest[0]?.[1] ?? Infinity;
const ORDERS = {
  order: () => 0,
  nearest: (a, b) => first(a) - first(b),
  farthest: (a, b) => first(b) - first(a),
};

function chosenQueries() {
  const part = filters.name.value.toLowerCase();
  return DATA.queries
    .filter((query) => DATA.samples[query.sample].name.toLowerCase().includes(part))
    .sort(ORDERS[filters.sort.value]);
}
