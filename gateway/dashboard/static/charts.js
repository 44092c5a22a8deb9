// Charts over time, drawn by uPlot (vendor/), with a tooltip and the same figures as a table for who cannot see them.

import { point } from "./format.js";
import { button, h, say, svg } from "./ui.js";

const uPlot = window.uPlot;
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const drawn = new Set();
const WHOLE = Array.from({ length: 12 }, (_, n) => [1, 2, 5].map((k) => k * 10 ** n)).flat(); // steps of an axis of counts

function redraw() {
  for (const chart of drawn) chart.redraw();
}
window.addEventListener("theme", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

/** Charts that are no longer on the page. */
export function forgetCharts() {
  for (const chart of drawn) chart.destroy();
  drawn.clear();
}

/** `kind` is stacked (bars, the first series at the bottom) or lines; `series` [{label, color}], a color being a
 * variable's name; `format` writes a value. `title` names it to screen readers. Gives {el, tools, update}: `tools` is the
 * legend and the switch to the table. update({x, step, ys, summary}): starts of the steps in seconds, the step's length,
 * the values of each series. `counts`: they are whole numbers. With `numbers` x is no time but the upper bound of each group, written by that function. */
export function chart({ title, kind, series, format, height = 220, numbers, counts }) {
  const host = h("div", { class: "plot", role: "img" });
  host.style.height = `${height}px`;
  const tip = h("div", { class: "tip", hidden: true });
  const table = h("div", {
    class: "scroll-x plot-table",
    tabindex: "0",
    role: "region",
    "aria-label": `${title}, as a table`,
    hidden: true,
  });
  table.style.height = `${height}px`;
  const summary = h("p", { class: "hidden" });
  const toggle = button("Table", {
    kind: "ghost small",
    icon: "table",
    onclick: () => {
      table.hidden = !table.hidden;
      host.hidden = !table.hidden;
      toggle.setAttribute("aria-pressed", String(!table.hidden));
      if (!table.hidden) fillTable();
      else resize();
    },
  });
  toggle.setAttribute("aria-pressed", "false");
  toggle.setAttribute("aria-label", `${title}: show as a table`);
  const names = series.map((s) => h("li", {}, swatch(s.color), s.label));
  const legend = h("ul", { class: "legend" }, names);
  const el = h("figure", { class: "chart" }, summary, host, table);
  let plot = null;
  let data = null;

  const xs = () => (numbers ? data.x : data.x.map((at) => at + data.step / 2));
  const label = (i) => (numbers ? numbers(data.x[i]) : point(data.x[i], data.step));

  function stacks() {
    if (kind !== "stacked") return [xs(), ...data.ys];
    const sums = [];
    data.ys.forEach((ys, s) => sums.push(ys.map((y, i) => y + (s ? sums[s - 1][i] : 0))));
    return [xs(), ...sums.reverse()]; // the highest is drawn first, the others over it
  }

  function make() {
    plot?.destroy();
    const order = kind === "stacked" ? [...series].reverse() : series;
    plot = new uPlot(
      options({ kind, order, format, numbers, counts, height, width: host.clientWidth, span, move }),
      stacks(),
      host,
    );
    plot.over.append(tip);
  }

  function span() {
    if (!data.x.length) return [0, 1];
    const half = data.step / 2;
    const mid = xs();
    return [mid[0] - half, mid.at(-1) + half];
  }

  function move(u) {
    const at = u.cursor.idx;
    tip.hidden = at === null || at === undefined || u.cursor.left < 0;
    if (tip.hidden) return;
    const lines = series
      .map((s, i) => [s, data.ys[i][at]])
      .filter(([, y]) => y || kind !== "stacked")
      .map(([s, y]) => h("div", {}, swatch(s.color), h("span", {}, s.label), h("span", { class: "num" }, format(y))));
    tip.replaceChildren(h("b", {}, label(at)), ...(lines.length ? lines : [h("div", {}, "none")]));
    const x = u.valToPos(u.data[0][at], "x");
    const left = x > u.over.clientWidth / 2;
    tip.style.transform = `translate(${left ? x - tip.offsetWidth - 12 : x + 12}px, 4px)`;
  }

  function fillTable() {
    const head = h(
      "tr",
      {},
      h("th", { scope: "col" }, numbers ? title : "Time"),
      series.map((s) => h("th", { scope: "col", class: "num" }, s.label)),
    );
    const rows = data.x.map((_, i) =>
      h(
        "tr",
        {},
        h("th", { scope: "row" }, label(i)),
        data.ys.map((ys) => h("td", { class: "num" }, format(ys[i]))),
      ),
    );
    table.replaceChildren(h("table", {}, h("thead", {}, head), h("tbody", {}, numbers ? rows : rows.reverse())));
  }

  function update(next) {
    data = next;
    say(summary, next.summary);
    host.setAttribute("aria-label", next.summary);
    const used = data.ys.map((ys) => kind !== "stacked" || ys.some((y) => y > 0));
    names.forEach((li, i) => (li.hidden = !used[i] && used.includes(true)));
    if (!table.hidden) fillTable();
    if (plot) {
      plot.setData(stacks());
      if (!tip.hidden) move(plot);
    } else if (host.clientWidth) make();
  }

  function resize() {
    if (!data || !host.clientWidth) return;
    if (plot) plot.setSize({ width: host.clientWidth, height });
    else make();
  }
  const seen = new ResizeObserver(resize);
  seen.observe(host);
  drawn.add({
    redraw: () => plot && make(),
    destroy: () => {
      seen.disconnect();
      plot?.destroy();
    },
  });
  return { el, tools: [legend, toggle], update };
}

function swatch(color) {
  return h("i", { class: `swatch ${color}`, "aria-hidden": "true" });
}

function options({ kind, order, format, numbers, counts, height, width, span, move }) {
  const font = `11px ${css("--sans")}`;
  const axis = { stroke: css("--ink-3"), font, ticks: { show: false } };
  const bars = uPlot.paths.bars({ size: [0.76, 34], radius: 0 });
  const line = uPlot.paths.linear();
  const paint = (s) => {
    const color = css(`--c-${s.color.slice(2)}`);
    if (kind === "stacked") return { stroke: color, fill: color, width: 0, paths: bars, points: { show: false } };
    return { stroke: color, fill: `${color}26`, width: 2, paths: line, points: { show: (u) => u.data[0].length < 3 } };
  };
  return {
    width,
    height,
    padding: [10, 16, 0, 0],
    legend: { show: false },
    cursor: { y: false, points: { show: kind !== "stacked", size: 7 }, drag: { x: false, y: false } },
    scales: {
      x: { time: !numbers, range: span },
      y: { range: (_, __, max) => [0, max > 0 ? max * 1.08 : 1] },
    },
    axes: [
      { ...axis, grid: { show: false }, size: 26, space: 64, values: numbers ? (_, at) => at.map(numbers) : times },
      {
        ...axis,
        grid: { stroke: css("--line"), width: 1 },
        size: room,
        space: 42,
        gap: 8,
        ...(counts && { incrs: WHOLE }),
        values: (_, at) => at.map(format),
      },
    ],
    series: [{}, ...order.map(paint)],
    hooks: { setCursor: [move] },
  };
}

/** Width of the value axis: what its longest label takes. */
function room(u, values) {
  const longest = (values ?? []).reduce((a, b) => (b.length > a.length ? b : a), "");
  return Math.max(34, Math.ceil(longest.length * 6.4) + 14);
}

function times(_, splits, __, ___, step) {
  const day = { month: "short", day: "numeric" };
  const hour = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
  if (step < 60) hour.second = "2-digit";
  return splits.map((at) => {
    const date = new Date(at * 1000);
    const midnight = date.getHours() === 0 && date.getMinutes() === 0 && date.getSeconds() === 0;
    return step >= 86_400 || midnight
      ? date.toLocaleDateString(undefined, day)
      : date.toLocaleTimeString(undefined, hour);
  });
}

/** A small line without axes; what it shows is said by the figure above it. */
export function sparkline() {
  const line = svg("path", { class: "spark-line" });
  const area = svg("path", { class: "spark-area" });
  const el = svg(
    "svg",
    { class: "spark", viewBox: "0 0 100 30", preserveAspectRatio: "none", "aria-hidden": "true" },
    area,
    line,
  );

  function update(values) {
    const max = Math.max(...values, 0);
    const y = (v) => (28 - (max > 0 ? (v / max) * 26 : 0)).toFixed(2);
    const x = (i) => ((i / Math.max(1, values.length - 1)) * 100).toFixed(2);
    const path = values.map((v, i) => `${i ? "L" : "M"}${x(i)} ${y(v)}`).join("");
    line.setAttribute("d", path);
    area.setAttribute("d", path && `${path}L100 30L0 30Z`);
  }
  return { el, update };
}
