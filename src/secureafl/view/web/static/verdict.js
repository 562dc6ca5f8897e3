import { ask, badge, clientLink, el, fmt, main, start, table } from "./common.js";

const update = new URLSearchParams(location.search).get("update") ?? "";
const link = (label, to) => (to === null ? null : el("a", { class: "step", href: `verdict?update=${to}` }, label));

function gauge(verdict) {
  const value = verdict.evidence.find((each) => each.name === verdict.judged_by)?.value;
  const limit = verdict.evidence.find((each) => each.name === "threshold")?.value;
  if (typeof value !== "number" || typeof limit !== "number" || value < 0 || limit <= 0) return null;
  const bar = (size, kind) => {
    const fill = el("i");
    fill.style.width = `${(size / Math.max(value, limit)) * 100}%`;
    return el("span", { class: `track ${kind}`, "aria-hidden": "true" }, fill);
  };
  const row = (label, size, kind) => [el("span", {}, label), bar(size, kind), el("span", {}, fmt(size))];
  return el("div", { class: "gauge", id: "gauge" }, ...row("this update", value, value > limit ? "over" : ""), ...row("threshold", limit, "limit"));
}

function draw(verdict, run) {
  document.title = `Update ${verdict.update} - SecureAFL`;
  const columns = [
    { head: "Evidence", class: "text", cell: (row) => el("code", {}, row.name) },
    { head: "Value", cell: (row) => fmt(row.value, 4) },
    { head: "What it is", class: "text wrap wide", cell: (row) => row.meaning },
  ];
  main().replaceChildren(
    el("div", {}, el("p", { class: "note" }, clientLink(verdict)),
      el("div", { class: "tools" }, el("h1", {}, `Update ${verdict.update}`), badge(verdict.accepted, verdict.reason))),
    el("section", { class: "card words", id: "words" }, el("h2", {}, "In words"), ...verdict.words.map((line) => el("p", {}, line)), gauge(verdict)),
    el("section", { class: "card", id: "evidence" }, el("h2", {}, "Evidence"),
      verdict.evidence.length ? table(columns, verdict.evidence) : el("p", { class: "empty" }, "It could not be judged, so there are no numbers.")),
    el("div", { class: "tools apart" }, link("← Previous of this client", verdict.previous) ?? el("span"), link("Next of this client →", verdict.next)),
    el("p", { class: "note" }, "The same in a terminal: ", el("code", {}, `secureafl audit ${run} --update ${verdict.update}`)));
}

let shown = false;
start("Verdict", async (tick) => {
  if (shown) return;
  shown = true;
  try {
    draw(await ask("verdict", { update }), tick.run);
  } catch {
    shown = false;
    main().replaceChildren(el("p", { class: "card empty" }, "The run has no such update. ", el("a", { href: "." }, "Overview")));
  }
});
