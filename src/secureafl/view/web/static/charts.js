// Thin wrappers around uPlot: colours of the page, time since the run began, and shapes beside colours.
import { count, duration, el, fmt } from "./common.js";

const HEIGHT = 220;
const INCREMENTS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 43200,
  86400, 172800, 432000, 864000, 1728000];

function colour(name) {
  const probe = el("span");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

const WHOLE = [1, 2, 5].flatMap((factor) => [0, 1, 2, 3, 4, 5, 6, 7].map((power) => factor * 10 ** power)).sort((a, b) => a - b);

function shortTime(seconds, step) {
  if (seconds === 0) return "0";
  if (step >= 86400) return `${fmt(seconds / 86400)} d`;
  if (step >= 3600) return `${fmt(seconds / 3600)} h`;
  if (step >= 60 && seconds >= 3600) return duration(seconds);
  if (step >= 60) return `${fmt(seconds / 60)} min`;
  return `${fmt(seconds, 4)} s`;
}

/** A card with a chart in it. `draw` makes series and options from colours; call the result's `show` with data. */
export function chartCard({ id, title, note = "", describe, build, onPick }) {
  const plot = el("div", { class: onPick ? "plot clickable" : "plot" });
  const remark = el("p", { class: "note" }, note);
  const card = el("figure", { class: "card", id, role: "group", "aria-label": title }, el("figcaption", {}, el("h2", {}, title)), plot, remark);
  let [chart, data, shape] = [null, null, null];

  const make = () => {
    chart?.destroy();
    const options = build(colour, data);
    const byTime = data.along !== "updates";
    const axis = { stroke: colour("faint"), grid: { stroke: colour("grid"), width: 1 }, ticks: { stroke: colour("grid"), width: 1, size: 4 },
      font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif", labelSize: 18 };
    chart = new uPlot({
      width: plot.clientWidth || 400,
      height: HEIGHT,
      legend: { live: true, markers: { show: !options.shapes, width: 0, fill: (u, s) => options.series[s - 1].stroke } },
      cursor: { points: { size: 7 }, drag: { x: true, y: false } },
      scales: { x: { time: false, range: (u, low, high) => (u.zoomed ? [low, high] : whole(data, high)) }, y: options.scale },
      axes: [
        { ...axis, size: 32, incrs: byTime ? INCREMENTS : WHOLE, space: 70,
          values: (u, splits, i, space, step) => splits.map((value) => (byTime ? shortTime(value, step) : count(value))) },
        { ...axis, size: 56, label: options.label, values: options.values ?? ((u, splits) => splits.map((value) => (value === null ? "" : fmt(value)))) },
      ],
      series: [{ label: byTime ? "Time" : "Update", value: (u, value) => (value === null ? "–" : byTime ? duration(value) : count(Math.floor(value))) }, ...options.series],
      hooks: {
        setSelect: [(u) => { u.zoomed = u.select.width > 0; }],
        init: [(u) => {
          u.over.addEventListener("dblclick", () => { u.zoomed = false; });
          let at = null;
          u.over.addEventListener("mousedown", (event) => { at = event.clientX; });
          u.over.addEventListener("click", (event) => {
            if (onPick && u.cursor.idx !== null && Math.abs(event.clientX - at) < 4) onPick(u.cursor.idx);
          });
        }],
      },
    }, options.data(data), plot);
  };

  new ResizeObserver(() => chart?.setSize({ width: plot.clientWidth, height: HEIGHT })).observe(plot);
  addEventListener("colours", () => data && make());
  return {
    card,
    show(next, text) {
      data = next;
      if (text !== undefined) remark.textContent = text;
      plot.setAttribute("role", "img");
      plot.setAttribute("aria-label", describe(next));
      const nextShape = shapeOf(next);
      if (chart === null || shape !== nextShape) make();
      else chart.setData(build(colour, data).data(data), !chart.zoomed);
      shape = nextShape;
    },
  };
}

/** From the run's start to its end; charts side by side end at the same place. */
function whole(data, high) {
  const end = data.middle?.length ? data.middle.at(-1) + data.width / 2 : high;
  return [0, end > 0 ? end : 1];
}

/** What a chart must be built anew for; all else is new data only. */
const shapeOf = (data) => `${data.points?.logarithmic} ${data.along} ${data.runs?.map((run) => run.key)}`;

/** Where the points lie: at their time, or their number. */
const places = (d) => (d.along === "updates" ? d.points.update : d.points.seconds);

const known = (u, value) => (value === null || value === undefined ? "–" : fmt(value));

/** Accepted and rejected arrivals per interval, stacked. */
export function verdictBars(colours) {
  const bars = uPlot.paths.bars({ size: [0.85, 40], gap: 0 });
  const [good, bad] = [colours("good"), colours("bad")];
  return {
    label: "updates",
    scale: { range: (u, low, high) => [0, Math.max(1, high * 1.08)] },
    data: (d) => [d.middle, d.accepted.map((value, i) => value + d.rejected[i]), d.accepted],
    series: [
      { label: "Rejected", fill: bad, stroke: bad, width: 0, paths: bars, points: { show: false },
        value: (u, value, s, i) => (i === null ? "–" : fmt(u.data[1][i] - u.data[2][i])) },
      { label: "Accepted", fill: good, stroke: good, width: 0, paths: bars, points: { show: false }, value: known },
    ],
  };
}

function crosses(size) {
  return (u, s, first, last, chosen) => {
    const path = new Path2D();
    const half = (size / 2) * devicePixelRatio;
    const [xs, ys, scale] = [u.data[0], u.data[s], u.series[s].scale];
    for (let i = first; i <= last; i++) {
      if (ys[i] === null || ys[i] === undefined) continue;
      const [x, y] = [u.valToPos(xs[i], "x", true), u.valToPos(ys[i], scale, true)];
      path.moveTo(x - half, y - half);
      path.lineTo(x + half, y + half);
      path.moveTo(x - half, y + half);
      path.lineTo(x + half, y - half);
    }
    return { stroke: path, fill: null, flags: 0 };
  };
}

/** What single arrivals were judged by, against the threshold. */
export function judgedPoints(label) {
  return (colours, data) => {
    const [good, bad, ink] = [colours("good"), colours("bad"), colours("ink")];
    const log = data.points.logarithmic;
    return {
      shapes: true,
      label: log ? `${label}, log scale` : label,
      scale: log ? { distr: 3, range: logRange } : { range: (u, low, high) => [Math.min(0, low * 1.05), high > 0 ? high * 1.08 : 1] },
      data: (d) => [places(d), d.points.accepted, d.points.rejected, d.points.threshold],
      series: [
        { label: "● Accepted", class: "good", stroke: good, paths: () => null, points: { show: true, size: 5, fill: good, stroke: good, width: 0 }, value: known },
        { label: "✕ Rejected", class: "bad", stroke: bad, paths: () => null, points: { show: true, size: 6, stroke: bad, width: 1.6, paths: crosses(6) }, value: known },
        { label: "┅ Threshold", class: "ink", stroke: ink, width: 1.6, dash: [6, 4], spanGaps: true, points: { show: false }, value: known },
      ],
    };
  };
}

function logRange(u, low, high) {
  if (!(low > 0) || !(high > 0)) return [0.1, 10];
  return [10 ** Math.floor(Math.log10(low)), 10 ** Math.ceil(Math.log10(high * 1.01))];
}

export function stalenessLines(colours) {
  const [good, faint] = [colours("good"), colours("faint")];
  return {
    label: "versions behind",
    scale: { range: (u, low, high) => [0, Math.max(1, high * 1.08)] },
    data: (d) => [d.middle, d.staleness, d.max_staleness],
    series: [
      { label: "Mean", stroke: good, width: 2, points: { show: false }, spanGaps: true, value: known },
      { label: "Largest", stroke: faint, width: 1.2, dash: [4, 4], points: { show: false }, spanGaps: true, value: known },
    ],
  };
}

export function rateLine(colours) {
  const good = colours("good");
  return {
    label: "updates per second",
    scale: { range: (u, low, high) => [0, high > 0 ? high * 1.08 : 1] },
    data: (d) => [d.middle, d.rate],
    series: [{ label: "Updates/s", stroke: good, width: 2, fill: colours("good-soft"), points: { show: false }, value: known }],
  };
}

export const RUN_DASHES = [[], [8, 4], [2, 3], [12, 4, 2, 4], [4, 4], [16, 4]];

/** One line for each run; colours and dashes tell them apart. */
export function runLines(column, label, top) {
  return (colours, data) => ({
    label,
    scale: { range: (u, low, high) => [0, top ?? (high > 0 ? high * 1.08 : 1)] },
    values: top === 1 ? (u, splits) => splits.map((value) => `${Math.round(value * 100)}%`) : undefined,
    data: (d) => uPlot.join(d.runs.map((run) => [run.middle, run[column]])),
    series: data.runs.map((run, i) => ({ label: run.name, stroke: colours(`run-${i + 1}`), width: 2, dash: RUN_DASHES[i], points: { show: false },
      spanGaps: true, value: top === 1 ? (u, value) => (value === null || value === undefined ? "–" : `${Math.round(value * 100)}%`) : known })),
  });
}

/** One client's weight over its updates. */
export function weightLine(column, label, top) {
  return (colours) => ({
    label,
    scale: { range: (u, low, high) => [Math.min(0, low), top ?? Math.max(1, high * 1.08)] },
    data: (d) => [d.update, d[column]],
    series: [{ label, stroke: colours("good"), width: 2, spanGaps: true, points: { show: false }, value: known }],
  });
}

/** What a reader should know about how the points were chosen. */
export function pointsNote(points) {
  const [accepted, rejected] = points.every;
  const part = (step) => (step === 1 ? "all" : `one in ${count(step)}`);
  const parts = [];
  if (accepted > 1 || rejected > 1) parts.push(`Drawn: ${part(accepted)} of the accepted, ${part(rejected)} of the rejected.`);
  if (points.unmeasured) parts.push(`${count(points.unmeasured)} without this measure, for example because they were rejected before.`);
  if (points.not_finite) parts.push(`${points.not_finite} without a finite value.`);
  return [...parts, "Click a point for its verdict; drag to zoom, double-click to go back."].join(" ");
}
