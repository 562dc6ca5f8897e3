import { ask, clientLink, count, duration, el, fixed, fmt, main, pager, paced, shareBar, start, table, why } from "./common.js";

const COLUMNS = [
  ["client", "Client", "text", clientLink],
  ["arrivals", "Updates", "", (row) => count(row.arrivals)],
  ["accepted", "Accepted", "", (row) => shareBar(row.share_accepted)],
  ["vote", "Vote", "", (row) => fixed(row.vote, 2)],
  ["steps", "Steps left", "minor", (row) => fixed(row.steps_left)],
  ["rejected", "Rejected", "minor", (row) => count(row.num_rejected)],
  ["staleness", "Staleness", "minor", (row) => fixed(row.staleness)],
  ["factor", "λ, median", "minor", (row) => fmt(row.factor, 3, true)],
  ["seen", "Last seen", "minor", (row) => duration(row.last_seen)],
  [null, "Why not, and what else", "text wrap", remarks],
];

/** What the operator said of a client, whether it is hardly heard, and what happened. */
function remarks(row) {
  const marks = [...row.said.map((word) => el("span", { class: "badge" }, word)),
    ...(row.notice === null ? [] : [el("span", { class: "badge warn", title: row.notice }, "hardly heard")])];
  return el("span", { class: "marks" }, ...marks, why(row));
}

const given = new URLSearchParams(location.search);
const wanted = {
  sort: given.get("sort") ?? "accepted",
  order: given.get("order") ?? "up",
  contains: given.get("contains") ?? "",
  only: given.get("only") ?? "",
  page: given.get("page") ?? "1",
};

const search = el("input", { type: "search", id: "filter", placeholder: "Filter by name", "aria-label": "Filter by name", value: wanted.contains });
const only = el("input", { type: "checkbox", id: "only-rejected", checked: wanted.only === "rejected" });
const found = el("span", { class: "right", id: "found", role: "status" });
const list = el("div");
main().replaceChildren(
  el("h1", {}, "Clients"),
  el("section", { class: "card" }, el("div", { class: "tools" }, search, el("label", {}, only, "Only with rejections"), found), list));

function change(values) {
  Object.assign(wanted, { page: "1" }, values);
  const query = new URLSearchParams(Object.entries(wanted).filter(([, value]) => value));
  history.replaceState(null, "", `?${query}`);
  draw().catch((error) => found.textContent = error.message);
}

function header([key, label]) {
  if (key === null) return label;
  const order = wanted.sort === key && wanted.order === "up" ? "down" : "up";
  return el("button", { type: "button", onclick: () => change({ sort: key, order: wanted.sort === key ? order : "up" }) }, label);
}

async function draw() {
  const asked = { ...wanted };
  const part = await ask("clients", asked);
  if (JSON.stringify(asked) !== JSON.stringify(wanted)) return; // the reader has asked for something else meanwhile
  found.textContent = part.found === part.total ? `${count(part.total)} clients` : `${count(part.found)} of ${count(part.total)} clients`;
  const left = { vote: !part.has_votes, steps: !part.has_steps };
  const columns = COLUMNS.filter(([key]) => !left[key]).map((column) => ({
    head: header(column), class: column[2], cell: column[3],
    sorted: column[0] === wanted.sort ? (wanted.order === "down" ? "descending" : "ascending") : null,
  }));
  const focused = document.activeElement?.closest("th")?.cellIndex;
  const empty = part.total ? "No client's name contains that." : "No client has sent an update yet.";
  list.replaceChildren(...[part.rows.length ? table(columns, part.rows, { id: "clients" }) : el("p", { class: "empty" }, empty),
    pager(part, (page) => change({ page: `${page}` }))].filter(Boolean));
  if (focused !== undefined) list.querySelectorAll("th")[focused]?.querySelector("button")?.focus();
}

let waiting;
search.addEventListener("input", () => {
  clearTimeout(waiting);
  waiting = setTimeout(() => change({ contains: search.value }), 150);
});
only.addEventListener("change", () => change({ only: only.checked ? "rejected" : "" }));
start("Clients", paced(draw));
