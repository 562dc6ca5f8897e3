import { ask, badge, clientLink, count, duration, el, eventsCard, fmt, main, paced, percent, shareBar, start, table, why } from "./common.js";
import { chartCard, judgedPoints, pointsNote, rateLine, stalenessLines, verdictBars } from "./charts.js";

const tiles = el("dl", { class: "tiles", id: "tiles" });
const lists = el("div", { class: "pair" });
const along = el("select", { id: "along" }, el("option", { value: "time" }, "time"), el("option", { value: "updates" }, "updates"));
along.value = localStorage.getItem("secureafl-along") ?? "time";
const events = el("div");
const notices = el("div");
let parts = null;
let latest = null;

function tile(id, label, value, sub = "", kind = "") {
  return el("div", { class: `card tile ${kind}`, id }, el("dt", {}, label), el("dd", {}, value, el("span", { class: "sub" }, sub)));
}

function standbyTile(standbys) {
  if (!standbys.length) return [];
  const rows = Math.max(...standbys.map((each) => each.rows));
  const ready = standbys.some((each) => each.can_lead);
  return [tile("tile-standbys", "Standbys", count(standbys.length), `${count(rows)} rows behind${ready ? "" : "; none can lead"}`, ready ? "" : "bad")];
}

function drawTiles(now) {
  const total = now.accepted + now.rejected;
  const share = (part) => (total ? `${percent(part / total)} of ${count(total)}` : "");
  tiles.replaceChildren(
    tile("tile-version", "Model version", count(now.version), `after ${duration(now.seconds)}`),
    tile("tile-accepted", "Accepted", count(now.accepted), share(now.accepted), "good"),
    tile("tile-rejected", "Rejected", count(now.rejected), share(now.rejected), "bad"),
    tile("tile-rate", "Updates/s", fmt(now.rate), now.mean_rate === null ? "" : `${fmt(now.mean_rate)} over the run`),
    tile("tile-staleness", "Staleness", fmt(now.staleness), now.max_staleness === null ? "" : `at most ${fmt(now.max_staleness)}`),
    tile("tile-measure", now.measure === "lipschitz_factor" ? "Lipschitz factor λ" : now.measure_label, fmt(now.typical),
      now.threshold === null ? "median of last 100" : `threshold ${fmt(now.threshold)}`),
    ...standbyTile(now.standbys),
    tile("tile-clients", "Clients", count(now.num_clients), now.num_clients ? `${fmt(total / now.num_clients, 2)} updates each` : ""),
  );
}

function makeCharts(now) {
  const span = (d) => (d.along === "updates" ? (d.width === 1 ? "1 update" : `${count(d.width)} updates`) : `${fmt(d.width)} s`);
  const range = (values) => values.filter((value) => value !== null);
  const top = (values) => fmt(Math.max(0, ...range(values)));
  let drawn = null;
  const cards = {
    verdicts: chartCard({ id: "chart-verdicts", title: "Accepted and rejected", build: verdictBars,
      describe: (d) => `Bars over time: at most ${top(d.accepted)} accepted and ${top(d.rejected)} rejected updates in ${span(d)}.` }),
    judged: chartCard({ id: "chart-judged", title: `${now.measure_label} against the threshold`, build: judgedPoints(now.measure_label),
      onPick: (i) => { location.href = `verdict?update=${drawn.points.update[i]}`; },
      describe: (d) => `${count(range(d.points.accepted).length)} accepted and ${count(range(d.points.rejected).length)} rejected updates by ${now.measure_label}, with the threshold.` }),
    staleness: chartCard({ id: "chart-staleness", title: "Staleness", build: stalenessLines,
      note: "How many versions the model had moved on when an update arrived.",
      describe: (d) => `Staleness over time: mean up to ${top(d.staleness)}, largest ${top(d.max_staleness)}.` }),
    rate: chartCard({ id: "chart-rate", title: "Updates per second", build: rateLine,
      describe: (d) => `Updates per second over time, at most ${top(d.rate)}.` }),
  };
  main().replaceChildren(tiles, notices, el("div", { class: "tools" }, el("label", { class: "right" }, "Drawn along", along)),
    el("div", { class: "pair" }, cards.verdicts.card, cards.judged.card),
    el("div", { class: "pair" }, cards.staleness.card, cards.rate.card), lists, events);
  return (d) => {
    drawn = d;
    cards.verdicts.show(d, `One bar is ${span(d)}.`);
    cards.judged.show(d, pointsNote(d.points));
    cards.staleness.show(d);
    cards.rate.show(d, `Averages over ${span(d)}.`);
  };
}

function worstCard(rows) {
  const columns = [
    { head: "Client", class: "text", cell: clientLink },
    { head: "Updates", cell: (row) => count(row.arrivals) },
    { head: "Accepted", cell: (row) => shareBar(row.share_accepted) },
    { head: "Why not", class: "text wrap", cell: why },
  ];
  return el("section", { class: "card", id: "worst" }, el("h2", {}, "Least accepted clients"),
    rows.length ? table(columns, rows) : el("p", { class: "empty" }, "Nobody was rejected so far."),
    el("p", { class: "note" }, el("a", { href: "clients" }, "All clients")));
}

function newcomersCard(summary) {
  return el("section", { class: "card warn", id: "newcomers" }, el("h2", {}, "Mostly newcomers"), el("p", { class: "note" }, summary.newcomers));
}

function noticesCard(summary) {
  const columns = [
    { head: "Client", class: "text", cell: clientLink },
    { head: "Why", class: "text wrap wide", cell: (row) => row.why },
  ];
  const more = summary.num_notices - summary.notices.length;
  return el("section", { class: "card warn", id: "notices" }, el("h2", {}, "Hardly heard"), el("p", { class: "note" }, summary.advice),
    table(columns, summary.notices), more > 0 ? el("p", { class: "note" }, `and ${count(more)} more`) : null);
}

function reasonsCard(rejections) {
  const rows = Object.entries(rejections);
  const most = Math.max(1, ...rows.map(([, times]) => times));
  const bar = (times) => {
    const fill = el("i");
    fill.style.width = `${(times / most) * 100}%`;
    return el("span", { class: "track count", "aria-hidden": "true" }, fill);
  };
  const columns = [
    { head: "Reason", class: "text", cell: ([reason]) => badge(false, reason) },
    { head: "Updates", cell: ([, times]) => count(times) },
    { head: "", class: "text", cell: ([, times]) => bar(times) },
  ];
  return el("section", { class: "card", id: "reasons" }, el("h2", {}, "Why updates were rejected"),
    rows.length ? table(columns, rows) : el("p", { class: "empty" }, "No update was rejected so far."));
}

const load = paced(async () => {
  if (latest.version === 0) {
    main().replaceChildren(tiles, el("p", { class: "card empty" }, "No update has arrived yet. This page shows the first one as soon as it does."));
    parts = null;
    return;
  }
  const [summary, charts] = await Promise.all([ask("summary"), ask("charts", { along: along.value })]);
  parts ??= makeCharts(summary.tick);
  parts(charts);
  lists.replaceChildren(worstCard(summary.worst), reasonsCard(summary.tick.rejections));
  events.replaceChildren(eventsCard(summary.events, true));
  const told = [summary.newcomers && newcomersCard(summary), summary.notices.length && noticesCard(summary)].filter(Boolean);
  notices.replaceChildren(...told);
  notices.hidden = told.length === 0;
});

along.addEventListener("change", () => {
  localStorage.setItem("secureafl-along", along.value);
  load();
});
start("Overview", (tick) => {
  latest = tick;
  drawTiles(tick);
  load();
});
