import { ask, count, duration, el, main, paced, shareBar, startFolder, stateBadge, table } from "./common.js";
import { chartCard, runLines } from "./charts.js";

const MOST = 6;
const given = new URLSearchParams(location.search);
const wanted = { contains: given.get("contains") ?? "", state: given.get("state") ?? "", defense: given.get("defense") ?? "",
  sort: given.get("sort") ?? "name", order: given.get("order") ?? "up" };
let chosen = given.getAll("run");
let rows = [];

const showFolder = startFolder("Runs");
const search = el("input", { type: "search", id: "filter", placeholder: "Filter by name", "aria-label": "Filter by name", value: wanted.contains });
const states = el("select", { id: "state-filter", "aria-label": "State" });
const defenses = el("select", { id: "defense-filter", "aria-label": "Defense" });
const found = el("span", { class: "right", id: "found", role: "status" });
const list = el("div");
const picked = el("section", { class: "card picked", id: "picked" });
const along = el("select", { id: "along" }, el("option", { value: "updates" }, "updates"), el("option", { value: "time" }, "time"));
along.value = localStorage.getItem("secureafl-along-runs") ?? "updates";

const of = (what) => (d) => `${what} of ${d.runs.map((run) => run.name).join(", ")}.`;
const charts = [
  chartCard({ id: "chart-share", title: "Share of updates accepted", build: runLines("share", "accepted", 1), describe: of("Share of accepted updates") }),
  chartCard({ id: "chart-rejected", title: "Rejected so far", build: runLines("rejected", "updates"), describe: of("Rejected updates so far") }),
  chartCard({ id: "chart-staleness", title: "Staleness, mean", build: runLines("staleness", "versions behind"), describe: of("Mean staleness") }),
  chartCard({ id: "chart-rate", title: "Updates per second", build: runLines("rate", "updates per second"), describe: of("Updates per second") }),
];
const drawings = el("div", { class: "pair", id: "overlay", hidden: true }, ...charts.map((chart) => chart.card));

const COLUMNS = [
  ["name", "Run", "text", (row) => el("a", { class: "name", title: row.name, href: `run/${encodeURIComponent(row.key)}/` }, row.name)],
  ["defense", "Defense", "text", (row) => row.defense],
  ["state", "State", "text minor", (row) => stateBadge(row.state)],
  ["updates", "Updates", "minor", (row) => count(row.updates)],
  ["share_accepted", "Accepted", "", (row) => shareBar(row.share_accepted)],
  ["reason", "Most rejected for", "text minor", (row) => (row.reason ? el("span", { class: "badge bad" }, row.reason) : "–")],
  ["clients", "Clients", "minor", (row) => count(row.clients)],
  ["notices", "Hardly heard", "minor", (row) => (row.notices ? el("span", { class: "badge warn" }, count(row.notices)) : "0")],
  ["seconds", "Lasted", "minor", (row) => duration(row.seconds)],
];

function remember() {
  const query = new URLSearchParams(Object.entries(wanted).filter(([name, value]) => value && !(name === "sort" && value === "name") && !(name === "order" && value === "up")));
  for (const key of chosen) query.append("run", key);
  history.replaceState(null, "", `?${query}`);
}

function change(values) {
  Object.assign(wanted, values);
  remember();
  draw();
}

function header([key, label]) {
  const order = wanted.sort === key && wanted.order === "up" ? "down" : "up";
  return el("button", { type: "button", onclick: () => change({ sort: key, order }) }, label);
}

function compared(a, b) {
  const [x, y] = [a[wanted.sort], b[wanted.sort]];
  const bySort = x === y ? 0 : x === null || x === undefined ? 1 : y === null || y === undefined ? -1 : (x < y ? -1 : 1) * (wanted.order === "down" ? -1 : 1);
  return bySort || (a.name < b.name ? -1 : 1);
}

function box(row) {
  const ticked = chosen.includes(row.key);
  return el("input", { type: "checkbox", checked: ticked, disabled: row.error !== null || (!ticked && chosen.length >= MOST), "aria-label": `Lay over: ${row.name}`,
    onchange: (event) => {
      chosen = event.target.checked ? [...chosen, row.key] : chosen.filter((key) => key !== row.key);
      remember();
      draw();
      overlay();
    } });
}

function draw() {
  const shown = rows.filter((row) => row.name.toLowerCase().includes(wanted.contains.toLowerCase())
    && (!wanted.state || row.state === wanted.state) && (!wanted.defense || row.defense === wanted.defense)).sort(compared);
  found.textContent = shown.length === rows.length ? `${count(rows.length)} runs` : `${count(shown.length)} of ${count(rows.length)} runs`;
  const focused = document.activeElement?.closest("#runs") ? [document.activeElement.closest("tr").rowIndex, document.activeElement.closest("td, th").cellIndex] : null;
  const columns = [{ head: el("span", { class: "hidden" }, "Choose"), class: "box", cell: box },
    ...COLUMNS.filter(([key]) => key !== "notices" || rows.some((row) => row.notices)).map((column) => ({ head: header(column), class: column[2], sorted: column[0] === wanted.sort ? (wanted.order === "down" ? "descending" : "ascending") : null,
      cell: (row) => (row.error === null ? column[3](row) : column[0] === "name" ? el("span", { class: "name", title: row.name }, row.name) : column[0] === "defense" ? el("span", { class: "badge warn", title: row.error }, "cannot be read") : "") }))];
  list.replaceChildren(shown.length ? table(columns, shown, { id: "runs" }) : el("p", { class: "empty" }, rows.length ? "No run is like that." : "There is no run in this folder."));
  if (focused) list.querySelectorAll("tr")[focused[0]]?.cells[focused[1]]?.querySelector("button, input, a")?.focus();
  drawPicked();
}

function drawPicked() {
  const chips = chosen.map((key, i) => el("li", { class: "chip" }, el("i", { class: `swatch run-${i + 1}`, "aria-hidden": "true" }), rows.find((row) => row.key === key)?.name ?? key));
  const both = chosen.length === 2 ? el("a", { class: "plain strong", id: "compare", href: `compare?${new URLSearchParams({ a: chosen[0], b: chosen[1] })}` }, "Compare verdicts") : null;
  const clear = el("button", { class: "plain", type: "button", onclick: () => { chosen = []; remember(); draw(); overlay(); } }, "Clear");
  picked.replaceChildren(chosen.length
    ? el("div", { class: "tools" }, el("ul", { class: "chips" }, ...chips), both, clear, el("label", { class: "right" }, "Drawn along", along))
    : el("p", { class: "note" }, `Choose up to ${MOST} runs to lay their curves over each other, or two to compare them verdict by verdict.`));
}

async function overlay() {
  drawings.hidden = chosen.length === 0;
  if (!chosen.length) return;
  const asked = chosen.join();
  const answer = await ask("overlay", { run: chosen, along: along.value });
  if (asked !== chosen.join()) return; // the reader has chosen others meanwhile
  for (const chart of charts) chart.show(answer);
}

function options(select, word, values, value) {
  const all = [["", word], ...[...new Set(values)].sort().map((each) => [each, each])];
  if (select.childElementCount !== all.length) select.replaceChildren(...all.map(([each, text]) => el("option", { value: each }, text)));
  select.value = value;
}

main().replaceChildren(el("h1", {}, "Runs"),
  el("section", { class: "card" }, el("div", { class: "tools" }, search, states, defenses, found), list), picked, drawings);
search.addEventListener("input", () => change({ contains: search.value }));
states.addEventListener("change", () => change({ state: states.value }));
defenses.addEventListener("change", () => change({ defense: defenses.value }));
along.addEventListener("change", () => {
  localStorage.setItem("secureafl-along-runs", along.value);
  overlay();
});

let last = "";
const load = paced(async () => {
  const answer = await ask("runs");
  showFolder(answer.folder);
  const text = JSON.stringify(answer.rows);
  if (text === last) return;
  last = text;
  rows = answer.rows;
  chosen = chosen.filter((key) => rows.some((row) => row.key === key && row.error === null)).slice(0, MOST);
  options(states, "Any state", rows.map((row) => row.state).filter(Boolean), wanted.state);
  options(defenses, "Any defense", rows.map((row) => row.defense).filter(Boolean), wanted.defense);
  draw();
  await overlay();
}, 1000);
load();
setInterval(load, 3000);
