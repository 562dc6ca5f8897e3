import { ask, badge, count, duration, el, fixed, inFull, main, pager, percent, shareBar, startFolder, stateBadge, table } from "./common.js";
import { chartCard, runLines } from "./charts.js";

const given = new URLSearchParams(location.search);
const wanted = { a: given.get("a") ?? "", b: given.get("b") ?? "", only: given.get("only") ?? "differ", page: "1" };
startFolder("Compare")("");

const only = el("input", { type: "checkbox", id: "only-differing", checked: wanted.only === "differ" });
const chart = chartCard({ id: "chart-share", title: "Share of updates accepted", build: runLines("share", "accepted", 1),
  describe: (d) => `Share of accepted updates of ${d.runs.map((run) => run.name).join(" and ")}.` });
const top = el("div", { class: "pair", id: "sides" });
const tiles = el("dl", { class: "tiles", id: "counts" });
const [settings, clients, verdicts] = [el("div"), el("div"), el("div")];
const found = el("span", { class: "right", id: "found", role: "status" });

const tile = (id, label, value, sub) => el("div", { class: "card tile", id }, el("dt", {}, label), el("dd", {}, count(value), el("span", { class: "sub" }, sub)));
const swatch = (place) => el("i", { class: `swatch run-${place}`, "aria-hidden": "true" });
const inRun = (side, path) => `run/${encodeURIComponent(side.key)}/${path}`;
const head = (side, place) => el("span", { class: "side", title: side.name }, swatch(place), place === 1 ? "A" : "B");

function side(run, place) {
  const total = run.accepted + run.rejected;
  const facts = [["Updates", count(total)], ["Accepted", total ? percent(run.accepted / total) : "–"], ["Clients", count(run.num_clients)], ["Lasted", duration(run.seconds)]];
  return el("section", { class: "card" },
    el("div", { class: "tools" }, el("h2", { class: "side" }, swatch(place), `${place === 1 ? "A" : "B"}: `, el("a", { class: "name", title: run.name, href: inRun(run, "") }, run.name)), stateBadge(run.state)),
    el("p", { class: "note" }, `Defense: ${run.defense}`),
    el("dl", { class: "facts" }, ...facts.map(([label, value]) => el("div", {}, el("dt", {}, label), el("dd", {}, value)))));
}

function drawSettings(answer) {
  const columns = [
    { head: "Setting", class: "text", cell: (row) => el("code", {}, row.name) },
    { head: head(answer.a, 1), class: "text wrap", cell: (row) => row.a || "–" },
    { head: head(answer.b, 2), class: "text wrap", cell: (row) => row.b || "–" },
  ];
  settings.replaceChildren(el("section", { class: "card", id: "settings" }, el("h2", {}, "What differs in their settings"),
    answer.settings.length ? table(columns, answer.settings) : el("p", { class: "empty" }, "Nothing: both ran under the same settings.")));
}

function drawClients(answer) {
  const link = (row) => el("a", { class: "name", title: inFull(row), href: inRun(row.updates[0] ? answer.a : answer.b, `client?${new URLSearchParams({ name: row.client })}`) }, row.label);
  const gap = (row) => (row.gap === null ? "–" : `${row.gap > 0 ? "+" : row.gap < 0 ? "−" : ""}${percent(Math.abs(row.gap))}`);
  const votes = answer.clients.some((row) => row.votes[0] !== null || row.votes[1] !== null);
  const columns = [
    { head: "Client", class: "text", cell: link },
    { head: el("span", {}, "Accepted ", head(answer.a, 1)), cell: (row) => shareBar(row.accepted[0]) },
    { head: el("span", {}, "Accepted ", head(answer.b, 2)), cell: (row) => shareBar(row.accepted[1]) },
    { head: "B − A", cell: gap },
    ...(votes ? [{ head: el("span", {}, "Vote ", head(answer.a, 1)), class: "minor", cell: (row) => fixed(row.votes[0], 2) },
      { head: el("span", {}, "Vote ", head(answer.b, 2)), class: "minor", cell: (row) => fixed(row.votes[1], 2) }] : []),
  ];
  clients.replaceChildren(el("section", { class: "card" }, el("h2", {}, "Clients, the most different first"),
    answer.clients.length ? table(columns, answer.clients, { id: "clients" }) : el("p", { class: "empty" }, "No client has sent an update yet.")));
}

function drawVerdicts(answer) {
  const part = answer.verdicts;
  const link = (run, verdict) => el("a", { href: inRun(run, `verdict?update=${verdict.update}`) }, count(verdict.update));
  const said = (run, verdict) => (verdict === null ? "–" : el("span", { class: "stack" }, link(run, verdict), badge(verdict.accepted, verdict.reason)));
  const columns = [
    { head: "Client", class: "text", cell: ({ a, b }) => el("span", { class: "name", title: inFull(a ?? b) }, (a ?? b).label) },
    { head: el("span", {}, "Update and verdict ", head(answer.a, 1)), class: "text", cell: ({ a }) => said(answer.a, a) },
    { head: el("span", {}, "Update and verdict ", head(answer.b, 2)), class: "text", cell: ({ b }) => said(answer.b, b) },
  ];
  found.textContent = `${count(part.found)} updates`;
  const empty = only.checked ? "Both runs came to the same verdicts." : "There are none.";
  verdicts.replaceChildren(...[part.rows.length ? table(columns, part.rows, { id: "verdicts" }) : el("p", { class: "empty" }, empty),
    pager(part, (page) => { wanted.page = `${page}`; load(); })].filter(Boolean));
}

async function load() {
  const answer = await ask("versus", { ...wanted, only: only.checked ? "differ" : "" });
  document.title = `${answer.a.name} and ${answer.b.name} - SecureAFL`;
  if (!top.isConnected) {
    main().replaceChildren(el("div", {}, el("p", { class: "note" }, el("a", { href: "." }, "Runs")), el("h1", {}, "Two runs side by side")), top, tiles,
      chart.card, settings, clients,
      el("section", { class: "card" }, el("div", { class: "tools" }, el("h2", {}, "Verdict by verdict"), el("label", {}, only, "Only where they differ"), found),
        el("p", { class: "note" }, "Beside each other: the first update of a client in both runs, its second, and so on."), verdicts));
  }
  top.replaceChildren(side(answer.a, 1), side(answer.b, 2));
  const { both, neither, only_a: onlyA, only_b: onlyB, alone_a: aloneA, alone_b: aloneB } = answer.counts;
  tiles.replaceChildren(tile("count-both", "Accepted by both", both, "updates"), tile("count-neither", "Rejected by both", neither, "updates"),
    tile("count-a", "Accepted by A only", onlyA, "rejected by B"), tile("count-b", "Accepted by B only", onlyB, "rejected by A"),
    ...(aloneA + aloneB ? [tile("count-alone", "In one run only", aloneA + aloneB, `A ${count(aloneA)}, B ${count(aloneB)}`)] : []));
  drawSettings(answer);
  drawClients(answer);
  drawVerdicts(answer);
  chart.show(await ask("overlay", { run: [wanted.a, wanted.b], along: "updates" }));
}

only.addEventListener("change", () => {
  wanted.page = "1";
  history.replaceState(null, "", `?${new URLSearchParams({ a: wanted.a, b: wanted.b, only: only.checked ? "differ" : "all" })}`);
  load();
});
load().catch((error) => main().replaceChildren(el("p", { class: "card empty" }, `${error.message} `, el("a", { href: "." }, "All runs"))));
