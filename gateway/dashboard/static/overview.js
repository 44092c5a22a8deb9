// The overview: what the caches save, and how well everything stands. It is built once and then only written to.

import * as api from "./api.js";
import { cards, ledger, whole } from "./cards.js";
import { chart, forgetCharts } from "./charts.js";
import { ranges, rangeWords, select } from "./filters.js";
import { compact, count, duration, ms, percent, usd } from "./format.js";
import { breakdown, flights, latency, semantic } from "./panels.js";
import { backends, documents, stores } from "./panels_store.js";
import { change } from "./route.js";
import { button, h, OUTCOMES, panel, say } from "./ui.js";
import { welcome } from "./welcome.js";

export const DEFAULT_RANGE = "1h";
const sum = (list) => list.reduce((a, b) => a + (b || 0), 0);

export function overviewView() {
  const endpoint = select("endpoint", "All endpoints", "filter-endpoint");
  const tenant = select("tenant", "All tenants", "filter-tenant");
  const range = ranges();
  const head = h(
    "div",
    { class: "page-head" },
    h("h1", {}, "Overview"),
    h("div", { class: "filters" }, endpoint.el, tenant.el, range.el),
  );
  const hello = welcome();
  const quiet = h(
    "div",
    { class: "panel quiet", hidden: true },
    h("p", {}),
    button("Show all time", { onclick: () => change({ range: "all", endpoint: "", tenant: "" }) }),
  );
  const foot = h("footer", { class: "foot" });
  const below = [latency(), flights(), semantic(), breakdown(), documents(), backends(), stores()];
  const parts = [cards(), ledger(), charts(), ...below];
  const [top, books, plots, ...panels] = parts;
  const body = h(
    "div",
    { class: "overview", hidden: true },
    top.el,
    books.el,
    plots.el,
    h(
      "div",
      { class: "grid" },
      panels.map((p) => p.el),
    ),
  );
  const bones = document.querySelector("#main > .skeleton");
  const waiting = h(
    "div",
    { class: "skeleton", "aria-hidden": "true" },
    bones ? [...bones.children].slice(1).map((b) => b.cloneNode(true)) : [],
  );
  const el = h("div", { class: "page" }, head, waiting, hello.el, quiet, body, foot);
  let query = {};
  let everything = null;
  let ever = null; // has there been any request? null: not known yet

  function route(next) {
    query = next.query;
    range.update(query.range ?? DEFAULT_RANGE);
    endpoint.update(everything?.choices?.endpoints ?? [], query.endpoint);
    tenant.update(everything?.choices?.tenants ?? [], query.tenant);
  }

  function update(overview) {
    everything = overview;
    route({ query });
    const total = sum(Object.values(overview.totals.requests));
    const narrowed = query.endpoint || query.tenant;
    if (total) ever = true;
    else if (ever === null) return askWhetherEver(overview);
    const fresh = !ever;
    waiting.remove();
    if (fresh) hello.show();
    else hello.hide();
    quiet.hidden = fresh || total > 0;
    say(
      quiet.firstChild,
      `No requests in ${rangeWords(query.range ?? DEFAULT_RANGE)}${narrowed ? " with these filters" : ""}.`,
    );
    body.hidden = fresh;
    if (!fresh) for (const part of parts) part.update(overview);
    const g = overview.gateway ?? {};
    const facts = [
      `Refrain ${g.version ?? ""}`,
      g.uptime && `up ${duration(g.uptime)}`,
      g.loop_lag_ms !== null && `event loop lag ${ms(g.loop_lag_ms)}`,
    ];
    say(foot, facts.filter(Boolean).join("  ·  "));
  }

  /** Nothing in this range may be nothing ever, and a newcomer is told something else. */
  async function askWhetherEver(shown) {
    ever = false;
    try {
      const all = await api.overview({ range: "all" });
      ever = sum(Object.values(all.totals.requests)) > 0;
    } catch {
      ever = null;
      return; // the next overview asks again
    }
    if (everything === shown) update(shown);
  }
  return { el, route, update, leave: forgetCharts };
}

function charts() {
  const shown = [...OUTCOMES];
  const requests = chart({
    title: "Requests by outcome",
    kind: "stacked",
    counts: true,
    height: 240,
    format: compact,
    series: shown.map((o) => ({ label: o, color: `o-${o}` })),
  });
  const pair = [
    { label: "saved", color: "o-exact" },
    { label: "consumed", color: "o-miss" },
  ];
  const tokens = chart({
    title: "Tokens saved and consumed",
    kind: "lines",
    counts: true,
    height: 190,
    format: compact,
    series: pair,
  });
  const money = chart({
    title: "Money saved and spent",
    kind: "lines",
    height: 190,
    format: usd,
    series: [pair[0], { label: "spent", color: "o-miss" }],
  });
  const el = h(
    "div",
    { class: "halves" },
    panel("Requests by outcome", { tools: requests.tools, wide: "both" }, requests.el),
    panel("Tokens", { tools: tokens.tools }, tokens.el),
    panel("Money", { tools: money.tools }, money.el),
  );

  function update({ series, totals, range }) {
    const x = series.time;
    const step = range.step;
    const fit = whole(series, range);
    const zeros = x.map(() => 0);
    const all = shown.map((o) => series.requests[o] ?? zeros);
    const said = shown.filter((o) => totals.requests[o]).map((o) => `${o} ${count(totals.requests[o])}`);
    requests.update({
      x,
      step,
      ys: all,
      summary: `Requests by outcome over time. In all: ${said.join(", ") || "none"}. ${percent(totals.hit_rate)} from cache.`,
    });
    const t = totals.tokens;
    tokens.update({
      x: fit(x),
      step,
      ys: [series.tokens.saved, series.tokens.consumed].map(fit),
      summary: `Tokens over time. In all ${count(t.saved)} saved, ${count(t.consumed)} consumed.`,
    });
    const u = totals.usd;
    money.update({
      x: fit(x),
      step,
      ys: [series.usd.saved, series.usd.consumed].map(fit),
      summary: `Money over time. In all ${usd(u.saved)} saved, ${usd(u.consumed)} spent.`,
    });
  }
  return { el, update };
}
