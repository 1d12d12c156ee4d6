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

const farthest = DATA.queries.flatMap((query) => query.nearest).reduce((most, [, distance]) => Math.max(most, distance), 0);

// The one number of a hit and its bar: the probability or, of a model without a calibration, the distance.
function nearFigure([sample, distance, , probability]) {
  if (DATA.judged && probability === null) return fileFigure(sample, "", element("span", "muted", "unknown"));
  const bar = element("span", "share");
  bar.style.setProperty("--share", DATA.judged ? probability : distance / (farthest || 1));
  return fileFigure(sample, "", element("b", "", DATA.judged ? `${percent(probability)} %` : distance.toFixed(4)), bar);
}

const first = (query) => query.nearest[0]?.[2] ?? Infinity;
const ORDERS = {
  order: () => 0,
  most: (a, b) => first(a) - first(b),
  least: (a, b) => first(b) - first(a),
};

function chosenQueries() {
  const part = filters.name.value.toLowerCase();
  return DATA.queries
    .filter((query) => DATA.samples[query.sample].name.toLowerCase().includes(part))
    .sort(ORDERS[filters.sort.value]);
}
