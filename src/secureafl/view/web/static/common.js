// What all pages share. Text from the run is only ever set as text, never as markup.

export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export const main = () => document.getElementById("main");

export function fmt(value, digits = 3, aligned = false) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "string") return value;
  const size = Math.abs(value);
  if (size >= 1e6 || (size > 0 && size < 1e-3)) return value.toExponential(digits - 1);
  const most = Math.max(digits, Math.ceil(Math.log10(size + 1)));
  return value.toLocaleString("en", { maximumSignificantDigits: most, minimumSignificantDigits: aligned && size ? digits : 1 });
}

export const fixed = (value, decimals = 1) =>
  (value === null ? "–" : value.toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals }));

export const count = (value) => value.toLocaleString("en");

const PERCENT = new Intl.NumberFormat("en", { style: "percent", roundingMode: "halfEven" }); // as the audit rounds

export const percent = (share) => (share === null ? "–" : PERCENT.format(share));

export function duration(seconds) {
  const whole = Math.floor(seconds);
  const [days, hours, minutes] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24, Math.floor(whole / 60) % 60];
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  if (minutes) return `${minutes} min ${whole % 60} s`;
  return seconds < 10 ? `${seconds.toFixed(1)} s` : `${whole} s`;
}

export async function ask(path, values = {}) {
  const query = new URLSearchParams(Object.entries(values).flatMap(([name, value]) => [value].flat().map((each) => [name, each]))
    .filter(([, value]) => value !== "" && value !== null));
  const response = await fetch(`api/${path}?${query}`);
  const answer = await response.json().catch(() => ({ error: `The server answered ${response.status}.` }));
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

// `client` is the name as it is, `label` the same with control characters made visible.
// Of a client that the operator gave a name, `label` is the name and `id` the rest.
export const inFull = ({ label, id }) => (id ? `${label} (${id})` : label);
export const clientLink = (row) => el("a", { class: "name", title: inFull(row), href: `client?${new URLSearchParams({ name: row.client })}` }, row.label);

export const updateLink = (update) => el("a", { href: `verdict?update=${update}` }, `${update}`);

export const badge = (accepted, reason) => el("span", { class: accepted ? "badge" : "badge bad" }, reason);

export function shareBar(share) {
  const fill = el("i");
  fill.style.width = `${(share ?? 0) * 100}%`;
  return el("span", { class: "share" }, el("span", { class: "track", "aria-hidden": "true" }, fill), el("span", { class: "figure" }, percent(share)));
}

export function why(client) {
  return Object.entries(client.happened).map(([reason, times]) => `${count(times)} ${reason}`).join(", ");
}

export function table(columns, rows, attributes = {}) {
  const head = el("tr", {}, ...columns.map((column) => el("th", { class: column.class, scope: "col", "aria-sort": column.sorted }, column.head)));
  const body = rows.map((row) => el("tr", {}, ...columns.map((column) => el("td", { class: column.class }, column.cell(row)))));
  return el("div", { class: "scroll" }, el("table", { class: "data", ...attributes }, el("thead", {}, head), el("tbody", {}, ...body)));
}

export function pager(part, go) {
  if (part.num_pages < 2) return null;
  const step = (label, by, off) => el("button", { class: "plain", type: "button", disabled: off, onclick: () => go(part.page + by) }, label);
  return el("div", { class: "pager" }, step("Previous", -1, part.page <= 1),
    `Page ${count(part.page)} of ${count(part.num_pages)}`, step("Next", 1, part.page >= part.num_pages));
}

export function eventsCard(events, withClient) {
  const columns = [
    { head: "Time", class: "text", cell: (row) => duration(row.seconds) },
    { head: "Event", class: "text", cell: (row) => row.event },
    { head: "Client", class: "text", cell: (row) => (row.client ? clientLink(row) : "") },
    { head: "Why", class: "text wrap wide", cell: (row) => row.reason },
  ].filter((column) => withClient || column.head !== "Client");
  return el("section", { class: "card", id: "events" }, el("h2", {}, "What else happened"),
    events.length ? table(columns, events) : el("p", { class: "empty" }, "Nothing but arrivals."));
}

const NOTES = {
  live: "",
  idle: "Nothing was written for a while: slow clients, or a server that died.",
  stopped: "Nobody writes to this run, and it did not come to its end. It can be resumed.",
  finished: "",
};

export function say(text) {
  document.getElementById("banner")?.remove();
  if (text) main().prepend(el("p", { class: "banner", id: "banner", role: "status" }, text));
}

function themeSwitch() {
  const select = el("select", { "aria-label": "Theme", id: "theme" },
    ...["System", "Light", "Dark"].map((name) => el("option", { value: name.toLowerCase() }, `${name} theme`)));
  select.value = document.documentElement.dataset.theme ?? "system";
  select.addEventListener("change", () => {
    if (select.value === "system") {
      delete document.documentElement.dataset.theme;
      localStorage.removeItem("secureafl-theme");
    } else {
      document.documentElement.dataset.theme = select.value;
      localStorage.setItem("secureafl-theme", select.value);
    }
    dispatchEvent(new Event("colours"));
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => dispatchEvent(new Event("colours")));
  return select;
}

export const stateBadge = (state, attributes = {}) =>
  el("span", { class: `badge ${state} ${state === "idle" || state === "stopped" ? "warn" : ""}`, ...attributes }, state);

/** The bar on top: links to pages, and what is shown. */
function bar(page, links, ...shown) {
  const nav = el("nav", { "aria-label": "Pages" }, ...links.map(([name, href]) => el("a", { href, "aria-current": name === page ? "page" : null }, name)));
  document.getElementById("top").append(el("div", { class: "bar" },
    el("a", { class: "brand", href: "." }, el("img", { src: "static/icon.svg", alt: "" }), "SecureAFL"), nav,
    el("div", { class: "run" }, ...shown, themeSwitch())));
  return nav;
}

/** Draw the frame of a page about several runs; call the result with their folder. */
export function startFolder(page) {
  const label = el("code");
  bar(page, [["Runs", "."]], label);
  return (folder) => { label.textContent = label.title = folder; };
}

/** Draw the frame, and call `onTick` with the run's figures whenever they change. */
export function start(page, onTick) {
  const [label, defense, state] = [el("code"), el("span", { id: "defense" }), el("span", { class: "badge", id: "state" })];
  const nav = bar(page, [["Overview", "."], ["Clients", "clients"]], label, defense, state);

  let note = null;
  const stream = new EventSource("api/stream");
  stream.addEventListener("message", (message) => {
    const tick = JSON.parse(message.data);
    const text = tick.error ?? (tick.version === 0 && tick.state === "live" ? "" : NOTES[tick.state]);
    if (text !== note) say((note = text));
    if (tick.error) return;
    if (tick.home && !document.getElementById("home")) nav.prepend(el("a", { id: "home", href: tick.home }, "Runs"));
    label.textContent = label.title = tick.run;
    defense.textContent = tick.defense;
    defense.title = "The defense that judges";
    state.textContent = tick.state;
    state.className = stateBadge(tick.state).className;
    onTick?.(tick);
  });
  stream.addEventListener("error", () => {
    say((note = "The dashboard's server does not answer. This page goes on as soon as it does."));
  });
}

/** Call `work` at once, and after that at most every so often; what went wrong is shown. */
export function paced(work, milliseconds = 2000) {
  let [busy, again, last] = [false, false, -Infinity];
  const attempt = async () => {
    if (busy) return void (again = true);
    busy = true;
    await new Promise((resolve) => setTimeout(resolve, Math.max(0, last + milliseconds - performance.now())));
    again = false;
    try {
      await work();
    } catch (error) {
      say(error.message);
    }
    last = performance.now();
    busy = false;
    if (again) attempt();
  };
  return attempt;
}
