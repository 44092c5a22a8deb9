// The phases of one request as bars over its time.

import { ms, percent } from "./format.js";
import { phase } from "./labels.js";
import { h } from "./ui.js";

const CACHE = new Set(["exact", "semantic", "join"]);
const OURS = new Set(["auth", "parse", "other"]);

/** `decision.spans` in order; what lies within another phase is set in. */
export function waterfall(decision) {
  const spans = decision.spans ?? [];
  if (!spans.length) return h("p", { class: "nothing", test: "decision-waterfall" }, "No phases were recorded.");
  const whole = Math.max(decision.ms, ...spans.map((s) => s.start + s.ms)) || 1;
  const row = (s) => {
    const bar = h("i", { class: CACHE.has(s.name) ? "cache" : OURS.has(s.name) ? "ours" : "upstream" });
    bar.style.left = `${(s.start / whole) * 100}%`;
    bar.style.width = `${(s.ms / whole) * 100}%`;
    return h(
      "tr",
      { class: s.within ? "inner" : "" },
      h("th", { scope: "row" }, phase(s.name)),
      h("td", { class: "track", "aria-hidden": "true" }, h("span", {}, bar)),
      h("td", { class: "num" }, ms(s.ms)),
      h("td", { class: "num share" }, s.within ? "" : percent(s.share)),
    );
  };
  const head = h(
    "tr",
    { class: "hidden" },
    ["Phase", "When", "Time", "Share"].map((t) => h("th", { scope: "col" }, t)),
  );
  return h(
    "table",
    { class: "waterfall", test: "decision-waterfall" },
    h("caption", { class: "hidden" }, "Phases of the request"),
    h("thead", {}, head),
    h("tbody", {}, spans.map(row)),
  );
}
