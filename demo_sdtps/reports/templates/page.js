// The data, colour schemes, and triplets of images with their kept patches.
"use strict";
const DATA = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const percent = (value) => (100 * value).toFixed(1);

function element(tag, className, ...children) {
  const node = document.createElement(tag);
  node.className = className;
  node.append(...children); // texts stay texts, whatever is in them
  return node;
}

// What depends on the colours is drawn again when they change.
const redraws = [];
const preferred = matchMedia("(prefers-color-scheme: dark)");

function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  byId("theme").setAttribute("aria-pressed", dark);
  redraws.forEach((redraw) => redraw());
}
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

byId("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme !== "dark"));
preferred.addEventListener("change", () => setTheme(preferred.matches));
setTheme(preferred.matches);

function nameOf(index) {
  const { identity, camera, scene, name } = DATA.samples[index];
  if (identity === undefined) return name;
  // Non-breaking spaces: lines end after a comma.
  return `id\u00a0${identity}, camera\u00a0${camera}${DATA.key !== "scene" ? "" : `, scene\u00a0${scene}`}`;
}

// A figure of a sample with lines of text below it.
function figure(index, className, ...lines) {
  const triplet = element("div", "triplet");
  triplet.tabIndex = 0;
  triplet.role = "button";
  triplet.ariaLabel = `Enlarge ${nameOf(index)}`;
  if (index in DATA.thumbnails) {
    const image = element("img", "");
    image.src = `data:image/jpeg;base64,${DATA.thumbnails[index]}`;
    image.alt = `${DATA.modalities.join(", ")} of ${nameOf(index)}`;
    triplet.append(image);
    if (DATA.kept) {
      const canvas = element("canvas", "");
      canvas.dataset.sample = index;
      triplet.append(canvas);
      drawKept(canvas);
    }
  } else {
    triplet.append(element("small", "", "image left out"));
  }
  const caption = element("figcaption", "", ...lines.flatMap((line, place) => (place ? [element("br", ""), line] : [line])));
  const whole = element("figure", `sample ${className}`, triplet, caption);
  whole.dataset.index = index;
  whole.title = DATA.samples[index].name;
  return whole;
}

// Covers the patches that are dropped: a canvas of one pixel per patch, which is stretched over the images.
function drawKept(canvas) {
  const { rows, columns, bits } = DATA.kept;
  const kept = bits[byId("kept").value]?.[canvas.dataset.sample];
  canvas.hidden = !kept;
  if (!kept) return;
  const many = DATA.modalities.length;
  [canvas.width, canvas.height] = DATA.stacked ? [columns, many * rows] : [many * columns, rows];
  const context = canvas.getContext("2d");
  context.fillStyle = `rgba(${DATA.palette.dropped.join(",")})`;
  for (let place = 0; place < many * rows * columns; place++) {
    if (kept[place] === "1") continue;
    const modality = Math.floor(place / (rows * columns));
    const row = Math.floor(place / columns) % rows;
    const column = place % columns;
    context.fillRect(column + (DATA.stacked ? 0 : modality * columns), row + (DATA.stacked ? modality * rows : 0), 1, 1);
  }
}

if (DATA.kept) byId("kept").addEventListener("change", () => document.querySelectorAll("canvas[data-sample]").forEach(drawKept));

// The shape of a thumbnail, for those that are left out too.
const shape = new Image();
shape.addEventListener("load", () => {
  document.documentElement.style.setProperty("--ratio", shape.naturalWidth / shape.naturalHeight);
});
shape.src = `data:image/jpeg;base64,${Object.values(DATA.thumbnails)[0]}`;

// Its files over the small images, which stay where a file is gone or of a format that browsers do not read, and links to them.
function showFiles(whole) {
  const { files } = DATA.samples[whole.dataset.index];
  if (!files) return;
  const [side, length] = DATA.stacked ? ["top", "height"] : ["left", "width"];
  const links = element("p", "");
  DATA.modalities.forEach((modality, place) => {
    if (!files[modality]) return;
    const image = element("img", "file");
    Object.assign(image.style, { [side]: `${(100 * place) / DATA.modalities.length}%`, [length]: `${100 / DATA.modalities.length}%` });
    image.addEventListener("error", () => image.remove());
    image.src = files[modality];
    whole.querySelector(".triplet img").after(image);
    const link = element("a", "", `open ${modality}`);
    [link.href, link.target] = [files[modality], "_blank"];
    links.append(link, " ");
  });
  whole.append(links);
}

// A click on a triplet, or Enter, shows it as large as the window allows; another closes it.
const large = byId("large");

function enlarge(event) {
  const triplet = event.target.closest(".triplet");
  if (!triplet || large.contains(triplet) || (event.key && event.key !== "Enter")) return;
  const copy = triplet.parentElement.cloneNode(true);
  copy.querySelectorAll("canvas").forEach(drawKept);
  copy.querySelector(".triplet").removeAttribute("tabindex");
  showFiles(copy);
  large.replaceChildren(copy);
  large.showModal();
}

large.addEventListener("click", () => large.close());
document.addEventListener("click", enlarge);
document.addEventListener("keydown", enlarge);
