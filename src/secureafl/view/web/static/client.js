import { ask, badge, count, duration, el, eventsCard, fixed, fmt, main, paced, pager, percent, start, table, updateLink } from "./common.js";
import { chartCard, judgedPoints, pointsNote, weightLine } from "./charts.js";

const name = new URLSearchParams(location.search).get("name") ?? "";
const wanted = { name, only: "", page: "1" };
const tiles = el("dl", { class: "tiles" });
const notice = el("p", { class: "banner", id: "notice", hidden: true });
const list = el("div");
const events = el("div");
const only = el("input", { type: "checkbox", id: "only-rejected" });
const weights = el("div", { class: "pair", id: "weights", hidden: true });
let [chart, drawn, number] = [null, null, null];
const lines = {
  vote: chartCard({ id: "chart-vote", title: "Vote", build: weightLine("vote", "Vote", 1.05),
    note: "What its vote weighed when an update of it arrived, from 0 to 1.", describe: () => "The weight of the client's vote over its updates." }),
  steps_left: chartCard({ id: "chart-steps", title: "Budget", build: weightLine("steps_left", "Steps left"),
    note: "How often it may move the model before it has to wait.", describe: () => "Steps left over the client's updates." }),
};

const tile = (label, value, sub = "") => el("div", { class: "card tile" }, el("dt", {}, label), el("dd", {}, value, el("span", { class: "sub" }, sub)));

function aboutVote(own) {
  return own.alike >= 2 ? `${fmt(own.alike, 2)} clients alike` : "1 is whole";
}

function frame({ label, id }, measure) {
  document.title = `${label} - SecureAFL`;
  chart = chartCard({ id: "chart-judged", title: `${measure} against the threshold`, build: judgedPoints(measure),
    onPick: (i) => { location.href = `verdict?update=${drawn.points.update[i]}`; },
    describe: (d) => `${count(d.points.update.length)} updates by ${measure}, with the threshold.` });
  main().replaceChildren(
    el("div", {}, el("p", { class: "note" }, el("a", { href: "clients" }, "Clients")), el("h1", { id: "name" }, label),
      ...(id ? [el("p", { class: "note", id: "client-id" }, id)] : [])),
    notice, tiles, chart.card, weights,
    el("section", { class: "card" }, el("div", { class: "tools" }, el("h2", {}, "Verdicts, newest first"), el("label", {}, only, "Only rejected")), list),
    events);
}

function drawWeights(found) {
  weights.hidden = found === null;
  if (found === null) return;
  const shown = Object.entries(lines).filter(([name]) => found[name].some((value) => value !== null));
  if (weights.childElementCount !== shown.length) weights.replaceChildren(...shown.map(([, line]) => line.card));
  for (const [, line] of shown) line.show({ ...found, along: "updates" });
}

async function draw() {
  let answer;
  try {
    answer = await ask("client", wanted);
  } catch (error) {
    if (chart) throw error;
    main().replaceChildren(el("p", { class: "card empty" }, "The run knows no client of this name. ", el("a", { href: "clients" }, "All clients")));
    return;
  }
  if (!chart) frame(answer.client, answer.measure);
  const own = answer.client;
  notice.hidden = answer.notice === null;
  notice.textContent = answer.notice === null ? "" : `${answer.notice}. ${answer.advice}`;
  tiles.replaceChildren(
    tile("Updates", count(own.arrivals)),
    tile("Accepted", percent(own.share_accepted), `${count(own.accepted)} accepted`),
    tile("Rejected", count(own.num_rejected), Object.keys(own.rejected)[0] ?? ""),
    ...(own.vote === null ? [] : [tile("Vote", fixed(own.vote, 2), answer.said.join(", ") || aboutVote(own))]),
    ...(own.steps_left === null ? [] : [tile("Steps left", fixed(own.steps_left), own.over_budget ? `${count(own.over_budget)} updates over budget` : "never over budget")]),
    ...(own.epsilon === null ? [] : [tile("Epsilon", fmt(own.epsilon), `in its own words; delta ${own.delta.toExponential(0)}`)]),
    tile("Staleness", fixed(own.staleness), "mean"),
    tile("λ, median", fmt(own.factor), own.factor === null ? "" : `mostly ${fmt(own.factor_low)} to ${fmt(own.factor_high)}`),
    tile("Last seen", duration(own.last_seen), "into the run"));
  drawn = answer;
  drawWeights(answer.weights);
  chart.card.hidden = answer.points.update.length === 0;
  if (!chart.card.hidden) chart.show(answer, pointsNote(answer.points));
  const columns = [
    { head: "Update", cell: (row) => updateLink(row.update) },
    { head: "Time", cell: (row) => duration(row.seconds) },
    { head: "Verdict", class: "text", cell: (row) => badge(row.accepted, row.reason) },
    { head: answer.measure, cell: (row) => fmt(row.judged, 3, true) },
    { head: "Threshold", cell: (row) => fmt(row.threshold, 3, true) },
    { head: "Staleness", cell: (row) => fmt(row.staleness) },
  ];
  const part = answer.verdicts;
  const go = (page) => { wanted.page = `${page}`; draw(); };
  list.replaceChildren(...[part.rows.length ? table(columns, part.rows, { id: "verdicts" }) : el("p", { class: "empty" }, "There are none."), pager(part, go)].filter(Boolean));
  events.replaceChildren(...(answer.events.length ? [eventsCard(answer.events, false)] : []));
}

only.addEventListener("change", () => {
  Object.assign(wanted, { only: only.checked ? "rejected" : "", page: "1" });
  draw();
});
const load = paced(draw);
start("Client", (tick) => {
  if (tick.number !== number) load();
  number = tick.number;
});
