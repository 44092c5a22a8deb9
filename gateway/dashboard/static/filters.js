// The fields that narrow a view down. They write the address; whoever shows data reads it from there.

import { change, RANGES } from "./route.js";
import { button, h } from "./ui.js";

/** A choice among what the gateway has seen. `update(names, chosen)` keeps a choice that is not among them. */
export function select(name, all, test) {
  const el = h("select", { "aria-label": all, test, onchange: () => change({ [name]: el.value }) });
  let said = "";
  function update(names, chosen = "") {
    const options = [...new Set([...names, chosen])].filter(Boolean);
    const now = JSON.stringify(options);
    if (now !== said) {
      said = now;
      el.replaceChildren(h("option", { value: "" }, all), ...options.map((n) => h("option", { value: n }, n)));
    }
    if (el.value !== chosen) el.value = chosen;
  }
  update([]);
  return { el, update };
}

/** A text that takes effect once the typing pauses. */
export function search(name, label, { test, delay = 250 } = {}) {
  let timer = 0;
  const el = h("input", {
    type: "search",
    placeholder: label,
    "aria-label": label,
    test,
    spellcheck: "false",
    autocomplete: "off",
    oninput: () => {
      clearTimeout(timer);
      timer = setTimeout(() => change({ [name]: el.value.trim() }), delay);
    },
  });
  return {
    el,
    update: (value = "") => {
      if (document.activeElement !== el && el.value !== value) el.value = value;
    },
  };
}

/** A view's fields in a row. On a phone all but the first two wait behind a button. */
export function filterBar(fields, ...tools) {
  const els = Object.values(fields).map((f) => f.el);
  for (const el of els.slice(2)) el.classList.add("rare");
  const more = button("Filters", {
    kind: "only-phone",
    test: "more-filters",
    onclick: () => {
      more.setAttribute("aria-expanded", String(bar.classList.toggle("all")));
    },
  });
  more.setAttribute("aria-expanded", "false");
  const bar = h("div", { class: "filters", role: "search" }, els, more, tools);
  return bar;
}

const IN_WORDS = {
  "15m": "15 minutes",
  "1h": "hour",
  "6h": "6 hours",
  "24h": "24 hours",
  "7d": "7 days",
  "30d": "30 days",
};
export const rangeWords = (range) => (range === "all" ? "all time" : `the last ${IN_WORDS[range]}`);

/** The time range, as one row of choices. */
export function ranges() {
  const inputs = RANGES.map((value) =>
    h("input", { type: "radio", name: "range", value, onchange: () => change({ range: value }) }),
  );
  const labels = inputs.map((input, i) =>
    h("label", { title: rangeWords(RANGES[i]) }, input, h("span", {}, RANGES[i] === "all" ? "All" : RANGES[i])),
  );
  const el = h(
    "div",
    { class: "segmented", role: "radiogroup", "aria-label": "Time range", test: "filter-range" },
    labels,
  );
  return { el, update: (value) => inputs.forEach((input) => (input.checked = input.value === value)) };
}
