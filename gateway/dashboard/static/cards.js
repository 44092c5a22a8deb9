// The headline figures, each with its small line over time, and the ledger: served + unserved = consumed + saved.

import { sparkline } from "./charts.js";
import { compact, count, duration, percent, usd, usdExact } from "./format.js";
import { badge, h, icon, known, say, sayAll } from "./ui.js";

const TIERS = ["exact", "stale", "semantic", "joined"];
const EXACT = 1_000_000; // below it every digit is shown
const sum = (values) => values.reduce((a, b) => a + (b || 0), 0);

function card(title, test, tone = "") {
  const value = h("p", { class: "card-value figure" });
  const sub = h("p", { class: "note" });
  const spark = sparkline();
  const el = h(
    "section",
    { class: `card ${tone}`, test, "aria-label": title },
    h("h2", {}, title),
    value,
    sub,
    spark.el,
  );
  return { el, value, sub, spark };
}

/** A line over steps would always fall at its end: this leaves the step out that is not over yet, unless it is the
 * first one in which something has happened. */
export function whole(series, range) {
  const steps = series.time.length;
  const early = Object.values(series.requests).every((list) => list.slice(0, -1).every((n) => !n));
  const running = steps > 2 && series.time.at(-1) + range.step > range.to && !early;
  return running ? (list) => list.slice(0, -1) : (list) => list;
}

export function cards() {
  const rate = card("Answered from cache", "card-hit-rate");
  const money = card("Money saved", "card-usd-saved");
  const tokens = card("Tokens saved", "card-tokens-saved");
  const time = card("Time saved", "card-time-saved");
  const all = card("Requests", "card-requests", "grey");
  const split = h("div", { class: "split", "aria-hidden": "true" });
  const legend = h("ul", { class: "split-legend" });
  rate.sub.replaceWith(split, legend);

  function update({ totals, series, range }) {
    const fit = whole(series, range);
    const requests = totals.requests;
    const total = sum(Object.values(requests));
    say(rate.value, total ? percent(totals.hit_rate) : "–");
    rate.spark.update(fit(hitRates(series.requests)));
    sayAll(
      split,
      TIERS.map((t) => requests[t] ?? 0)
        .concat(total)
        .join(),
      () => TIERS.map((tier) => part(tier, requests[tier], total)),
    );
    const shares = TIERS.filter((t) => t !== "stale" || requests.stale).map((t) => [
      t,
      total ? percent((requests[t] ?? 0) / total) : "–",
    ]);
    sayAll(legend, shares.join(), () =>
      shares.map(([t, share]) => h("li", {}, badge(t), h("b", { class: "figure" }, share))),
    );

    say(money.value, usd(totals.usd.saved));
    const priced = totals.usd.saved || totals.usd.consumed || !totals.tokens.consumed;
    say(money.sub, priced ? `${usd(totals.usd.consumed)} spent on upstream calls` : "no price known: see `prices`");
    money.spark.update(fit(series.usd.saved));

    say(tokens.value, compact(totals.tokens.saved, EXACT));
    say(tokens.sub, `${compact(totals.tokens.consumed, EXACT)} consumed upstream`);
    tokens.spark.update(fit(series.tokens.saved));

    say(time.value, duration((totals.ms_saved ?? 0) / 1000));
    say(time.sub, "of waiting for a model, spared");
    time.spark.update(fit(series.ms_saved ?? []));

    say(all.value, compact(total, EXACT));
    say(all.sub, totals.errors ? `${count(totals.errors)} errors (${percent(totals.errors / total)})` : "no errors");
    all.sub.classList.toggle("bad", totals.errors > 0);
    all.spark.update(fit(added(Object.values(series.requests))));
  }
  return {
    el: h(
      "div",
      { class: "cards" },
      [rate, money, tokens, time, all].map((c) => c.el),
    ),
    update,
  };
}

function part(outcome, n = 0, total = 0) {
  const el = h("i", { class: `o-${known(outcome)}` });
  el.style.width = `${total ? (n / total) * 100 : 0}%`;
  return el;
}

function added(lists) {
  return lists.reduce((sums, list) => list.map((v, i) => v + (sums[i] ?? 0)), []);
}

function hitRates(requests) {
  const all = added(Object.values(requests));
  const hits = added(TIERS.map((t) => requests[t] ?? []).filter((l) => l.length));
  let rate = 0;
  return all.map((n, i) => (rate = n ? (hits[i] ?? 0) / n : rate)); // a quiet step says nothing new
}

export function ledger() {
  const tokens = identity("Tokens", count, 0);
  const money = identity("USD", usdExact, 1e-6);
  const el = h("section", { class: "panel ledger", "aria-label": "Ledger" }, tokens.el, money.el);

  function update({ totals }) {
    const t = totals.tokens;
    const u = totals.usd;
    tokens.update(t, [`billable ${count(t.billable)}`, `of it cached by the provider ${count(t.cached ?? 0)}`]);
    money.update(u, [`billable ${usdExact(u.billable)}`, `the cache's own work ${usdExact(u.overhead ?? 0)}`]);
  }
  return { el, update };
}

const TERMS = [
  ["served", "Served", "in answers that clients got"],
  ["unserved", "Unserved", "retries, audits, abandoned answers"],
  ["consumed", "Consumed", "by upstream calls"],
  ["saved", "Saved", "served without an upstream call"],
];

function identity(title, write, tolerance) {
  const figures = Object.fromEntries(TERMS.map(([name]) => [name, h("dd", { class: "figure" })]));
  const terms = TERMS.map(([name, label, hint]) =>
    h("div", { class: `term ${name}`, title: hint }, h("dt", {}, label), figures[name]),
  );
  const verdict = h("span", { class: "verdict" });
  const more = h("span", { class: "note" });
  const sign = (text) => h("span", { class: "sign", "aria-hidden": "true" }, text);
  const dl = h("dl", { class: "identity" }, terms[0], sign("+"), terms[1], sign("="), terms[2], sign("+"), terms[3]);
  const el = h(
    "div",
    { class: "identity-row" },
    h("h2", {}, title),
    dl,
    h("p", { class: "identity-note" }, verdict, more),
  );

  function update(sums, rest) {
    for (const [name] of TERMS) say(figures[name], write(sums[name] ?? 0));
    const off = Math.abs(sums.served + sums.unserved - sums.consumed - sums.saved);
    const fits = off <= tolerance * Math.max(1, Math.abs(sums.served));
    sayAll(verdict, String(fits), () => (fits ? [icon("check", 14), "adds up"] : [`differs by ${write(off)}`]));
    verdict.classList.toggle("bad", !fits);
    say(more, rest.join(" · "));
  }
  return { el, update };
}
