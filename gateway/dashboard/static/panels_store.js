// Panels of the overview about what stands behind: stores and backends.

import { bytes, count, ms, percent, rate } from "./format.js";
import { h, meter, panel, sayAll, state, table } from "./ui.js";

export function stores() {
  const list = h("div", { class: "stack" });
  const el = panel("Stores", { note: "stored answers, by layer" }, list);

  function update({ stores: all = {} }) {
    sayAll(list, JSON.stringify(all), () => {
      const layers = Object.entries(all);
      return layers.length
        ? layers.map(([name, s]) => layer(name, s))
        : h("p", { class: "nothing" }, "Shown to the role admin only.");
    });
  }
  return { el, update };
}

function layer(name, s) {
  const losses = [
    ["evicted", s.evicted],
    ["dropped", s.dropped],
    ["corrupt", s.corrupt],
  ].filter(([, n]) => n !== undefined);
  const share = s.max_bytes ? s.bytes / s.max_bytes : 0;
  return h(
    "div",
    { class: "layer" },
    h(
      "div",
      { class: "row" },
      h("h3", {}, name),
      s.healthy === false ? state("not reachable", "bad") : state("healthy", "good"),
    ),
    h(
      "p",
      { class: "row" },
      h("b", { class: "figure" }, `${count(s.entries)} answers`),
      h("span", { class: "note figure" }, s.max_bytes ? `${bytes(s.bytes)} of ${bytes(s.max_bytes)}` : bytes(s.bytes)),
    ),
    meter(share, share > 0.9 ? "bad" : ""),
    h("p", { class: "note figure" }, losses.map(([word, n]) => `${count(n)} ${word}`).join(" · ")),
  );
}

const TONES = { ready: "good", starting: "warn", down: "bad" };

/** Retrievers: their state, and how many searches the cache has spared them. Hidden where there are none. */
export function documents() {
  const columns = ["Retriever", "From the cache", "Searched", "Joined", "Failed"];
  const rows = table(
    "Retrievers and what became of their look-ups",
    columns.map((title, i) => ({ title, num: i > 0 })),
  );
  const el = panel("Documents", { note: "what answers are made from, and searches spared", wide: "span-2" }, rows.el);
  el.hidden = true;

  function update({ retrievers: all = {} }) {
    const found = Object.entries(all);
    el.hidden = !found.length;
    rows.update(
      found.map(([name, r]) => {
        const word = r.state ?? "unknown";
        const text = r.detail && r.detail !== word ? `${word}: ${r.detail}` : word;
        const n = (what) => r.lookups?.[what] ?? 0;
        const asked = n("hit") + n("miss") + n("joined");
        return [
          [
            `${name} ${text}`,
            () => h("span", { class: "backend" }, h("b", {}, name), state(text, TONES[word] ?? "idle")),
          ],
          asked ? percent(n("hit") / asked) : "–",
          count(n("miss")),
          count(n("joined")),
          count(n("failed")),
        ];
      }),
    );
  }
  return { el, update };
}

export function backends() {
  const columns = ["Backend", "Model", "Overhead", "Prefill tok/s", "Decode tok/s", "Error", "Samples"];
  const rows = table(
    "Backends and what has been learnt of their speed",
    columns.map((title, i) => ({ title, num: i > 1 })),
  );
  const el = panel("Backends", { note: "health, and the speed learnt from their answers", wide: "span-2" }, rows.el);

  function update({ backends: all = {} }) {
    rows.update(
      Object.entries(all).flatMap(([name, b]) => {
        const word = b.state ?? "unknown";
        const text = b.detail && b.detail !== word ? `${word}: ${b.detail}` : word;
        const who = [
          `${name} ${text}`,
          () => h("span", { class: "backend" }, h("b", {}, name), state(text, TONES[word] ?? "idle")),
        ];
        const models = Object.entries(b.models ?? {});
        if (!models.length) return [[who, "–", "–", "–", "–", "–", "0"]];
        return models.map(([model, m], i) => [
          i ? "" : who,
          [model, () => h("span", { class: "name", title: model }, model)],
          ms(m.overhead_ms),
          rate(m.prefill_tps),
          rate(m.decode_tps),
          m.error === null ? "–" : percent(m.error),
          count(m.samples),
        ]);
      }),
    );
  }
  return { el, update };
}
