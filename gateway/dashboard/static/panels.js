// Panels of the overview about answering: latency, flights, the semantic tier, prefixes, and who asks.

import { chart } from "./charts.js";
import { compact, count, ms, percent, usd } from "./format.js";
import { reason } from "./labels.js";
import { badge, h, known, meter, OUTCOMES, panel, say, sayAll, state, table } from "./ui.js";

const FROM = Math.log10(0.1); // ms at the left end of the latency lines
const TO = Math.log10(60_000); // and at the right one

export function latency() {
  const columns = ["Outcome", "Requests", "p50", "p95", "p99", "TTFT p50", "TTFT p95", "TTFT p99", "p50 to p99"];
  const rows = table(
    "Latency by outcome",
    columns.map((title, i) => ({ title, num: i > 0 && i < 8 })),
  );
  const el = panel("Latency", { note: "of whole answers, and to the first token (TTFT)", wide: "span-2" }, rows.el);

  function update({ outcomes }) {
    const seen = OUTCOMES.filter((o) => outcomes[o]?.requests);
    rows.update(
      seen.map((name) => {
        const o = outcomes[name];
        const figures = [o.p50, o.p95, o.p99, o.first_p50, o.first_p95, o.first_p99].map(ms);
        return [[name, () => badge(name)], count(o.requests), ...figures, [`${o.p50}-${o.p99}`, () => reach(o, name)]];
      }),
    );
  }
  return { el, update };
}

/** From the median to the slowest percent, on a logarithmic scale: a hit and a model are a thousandfold apart. */
function reach({ p50, p99 }, outcome) {
  const at = (v) => Math.max(0, Math.min(1, (Math.log10(Math.max(v ?? 0.1, 0.1)) - FROM) / (TO - FROM))) * 100;
  const bar = h("i", { class: `o-${known(outcome)}` });
  bar.style.left = `${at(p50)}%`;
  bar.style.width = `${Math.max(3, at(p99) - at(p50))}%`;
  return h("span", { class: "reach", "aria-hidden": "true" }, bar);
}

export function flights() {
  const facts = figures(
    [
      ["joined", "Joined a call under way"],
      ["open", "Calls under way now"],
      ["listening", "Clients waiting on them"],
    ],
    "lines",
  );
  const head = h("h3", {}, "Prefix reuse");
  const bar = h("div", {});
  const text = h("p", { class: "note" });
  const el = panel(
    "Flights",
    { note: "identical requests share one call" },
    facts.el,
    h("div", { class: "sub" }, head, bar, text),
  );

  function update({ flights: f, prefix }) {
    facts.update({ joined: count(f.joined), open: count(f.open), listening: count(f.listening) });
    const share = prefix.input ? prefix.cached / prefix.input : 0;
    sayAll(bar, String(share), () => meter(share));
    say(
      text,
      prefix.input
        ? `${percent(share)} of ${compact(prefix.input)} prompt tokens sent upstream were in a backend's cache`
        : "No prompt has gone upstream in this range.",
    );
  }
  return { el, update };
}

function figures(list, look = "figures") {
  const values = Object.fromEntries(list.map(([name]) => [name, h("dd", { class: "figure" })]));
  const el = h(
    "dl",
    { class: look },
    list.map(([name, label]) => h("div", {}, h("dt", {}, label), values[name])),
  );
  return { el, update: (now) => Object.entries(now).forEach(([name, value]) => say(values[name], value)) };
}

export function semantic() {
  const status = h("span", { class: "end" });
  const facts = figures([
    ["hits", "hits"],
    ["refused", "not served"],
    ["right", "reported right"],
    ["wrong", "reported wrong"],
  ]);
  const series = [
    { label: "not served", color: "o-miss" },
    { label: "served", color: "o-semantic" },
  ];
  const plot = chart({
    title: "Similarity of the nearest question",
    kind: "stacked",
    counts: true,
    series,
    format: count,
    height: 262,
    numbers: (x) => x.toFixed(2),
  });
  const refusals = h("ul", { class: "bars" });
  const off = h("p", { class: "nothing" });
  const left = h(
    "div",
    {},
    h("div", { class: "panel-head" }, h("h3", {}, "Similarity to the nearest question"), ...plot.tools),
    plot.el,
  );
  const right = h("div", {}, h("div", { class: "panel-head" }, h("h3", {}, "Not served because of")), refusals);
  const on = h("div", {}, facts.el, h("div", { class: "halves" }, left, right));
  const el = panel("Semantic tier", { note: "since the start of the gateway", tools: status, wide: "span-3" }, off, on);

  function update({ semantic: s = {} }) {
    const there = s.state !== undefined && s.state !== "off";
    off.hidden = there;
    on.hidden = !there;
    sayAll(
      status,
      `${s.state} ${s.detail}`,
      () => there && state(s.detail && s.detail !== s.state ? `${s.state}: ${s.detail}` : s.state, tone(s.state)),
    );
    say(off, s.state ? "The semantic tier is off: no endpoint has it in its cache." : "Shown to the role admin only.");
    if (!there) return;
    const misses = Object.entries(s.misses ?? {}).sort((a, b) => b[1] - a[1]);
    const refused = misses.reduce((n, [, m]) => n + m, 0);
    const reported = s.reported ?? {};
    facts.update({
      hits: count((s.hits ?? 0) + (s.hits_by_alias ?? 0)),
      refused: count(refused),
      right: count(reported.right),
      wrong: count(reported.wrong),
    });
    sayAll(refusals, JSON.stringify(misses), () => bars(misses.slice(0, 8), refused));
    similarities(s.similarities, plot);
  }
  return { el, update };
}

const tone = (word) => ({ ready: "good", starting: "warn", degraded: "warn" })[word] ?? "bad";

function bars(list, total) {
  if (!list.length) return h("li", { class: "nothing" }, "Everything was served.");
  return list.map(([code, n]) =>
    h(
      "li",
      { title: code },
      h("span", {}, reason(code)),
      h("b", { class: "figure" }, count(n)),
      meter(n / total, "grey"),
    ),
  );
}

function similarities(s, plot) {
  if (!s?.bounds?.length) return;
  const all = (list) => list.reduce((a, b) => a + b, 0);
  const step = s.bounds.length > 1 ? s.bounds[1] - s.bounds[0] : 0.02;
  plot.update({
    x: s.bounds,
    step,
    ys: [s.miss, s.hit],
    summary: `Look-ups by similarity: ${count(all(s.hit))} served, ${count(all(s.miss))} not.`,
  });
}

const GROUPS = { endpoints: "Endpoint", tenants: "Tenant", models: "Model" };

/** Requests and savings by endpoint, tenant or model. */
export function breakdown() {
  let shown = "endpoints";
  let latest = null;
  const choices = Object.entries(GROUPS).map(([value, word]) =>
    h(
      "label",
      {},
      h("input", { type: "radio", name: "group", value, checked: value === shown, onchange: () => choose(value) }),
      h("span", {}, word),
    ),
  );
  const pick = h(
    "div",
    { class: "filters end" },
    h("div", { class: "segmented", role: "radiogroup", "aria-label": "Group by" }, choices),
  );
  const titles = ["Name", "Requests", "From cache", "Tokens saved", "Money saved", "Spent"];
  const rows = table(
    "Requests and savings by group",
    titles.map((title, i) => ({ title, num: i > 0 })),
  );
  const el = panel("Who asks", { note: "requests and savings", tools: pick, wide: "span-3" }, rows.el);

  function choose(name) {
    shown = name;
    if (latest) update(latest);
  }

  function update(overview) {
    latest = overview;
    const list = [...(overview[shown] ?? [])].sort((a, b) => b.requests - a.requests).slice(0, 100);
    rows.update(
      list.map((r) => {
        const share = r.requests ? r.hits / r.requests : 0;
        return [
          [r.name, () => h("span", { class: "name", title: r.name }, r.name || "(none)")],
          count(r.requests),
          [String(share), () => h("span", { class: "cell-meter" }, meter(share), h("span", {}, percent(share, 0)))],
          compact(r.tokens_saved),
          usd(r.usd_saved),
          usd(r.usd_consumed),
        ];
      }),
    );
  }
  return { el, update };
}
