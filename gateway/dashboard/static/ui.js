// Builds the page's elements. Whatever comes from outside becomes a text node or an attribute: nothing is parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** h("p", {class: "note", onclick: f, test: "x"}, "text", child, ...): `test` is data-test, `on…` a listener, false and
 * null leave an attribute out. */
export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** The same for SVG. */
export function svg(tag, props, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "test") node.dataset.test = value;
    else if (name === "value" && "value" in node) node.value = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(
    ...children
      .flat(2)
      .filter((c) => c !== null && c !== undefined && c !== false)
      .map((c) => (c instanceof Node ? c : shown(c))),
  );
  return node;
}

/** Marks that turn the direction of the text around them would make a name look like another one: they are shown. */
const TURNS = /[\u202a-\u202e\u2066-\u2069]/g;
const shown = (text) => String(text).replace(TURNS, (c) => `[U+${c.charCodeAt(0).toString(16).toUpperCase()}]`);

/** Write a text, if it is another one: most numbers stay the same from one second to the next. */
export function say(node, text) {
  const now = shown(text);
  const only = node.firstChild;
  // To change the text node that is there is cheaper than to make one: the list does this hundreds of times a frame.
  if (only && only.nodeType === Node.TEXT_NODE && only === node.lastChild) {
    if (only.data !== now) only.data = now;
  } else if (only || now) node.textContent = now;
}

/** Replace the children, if what they say has changed. */
export function sayAll(node, key, make) {
  if (node.dataset.said === key) return;
  node.dataset.said = key;
  node.replaceChildren(...[make()].flat(2).filter(Boolean));
}

const ICONS = {
  copy: ["M9 9h10v10H9z", "M5 15V5h10"],
  close: ["M6 6l12 12", "M18 6L6 18"],
  sun: [
    "M12 8a4 4 0 100 8 4 4 0 000-8z",
    "M12 3v1.5M12 19.5V21M3 12h1.5M19.5 12H21M5.6 5.6l1.1 1.1M17.3 17.3l1.1 1.1M5.6 18.4l1.1-1.1M17.3 6.7l1.1-1.1",
  ],
  moon: ["M20 14.5A8.5 8.5 0 019.5 4a8.5 8.5 0 1010.5 10.5z"],
  out: ["M14 4H6v16h8", "M10 12h10", "M16.5 8.5L20 12l-3.5 3.5"],
  up: ["M6 14l6-6 6 6"],
  down: ["M6 10l6 6 6-6"],
  pause: ["M9 6v12", "M15 6v12"],
  play: ["M8 5.5v13l10.5-6.5z"],
  check: ["M5 12.5l4.5 4.5L19 7.5"],
  table: ["M4 5.5h16v13H4z", "M4 10.5h16M10 10.5v8"],
  trash: ["M5 7h14", "M9 7V4.5h6V7", "M7 7l1 12.5h8L17 7"],
};

export function icon(name, size = 16) {
  const props = {
    viewBox: "0 0 24 24",
    width: size,
    height: size,
    class: "icon",
    "aria-hidden": "true",
    focusable: "false",
  };
  return svg(
    "svg",
    props,
    ICONS[name].map((d) => svg("path", { d })),
  );
}

export function button(label, { kind = "", icon: name, test, onclick, title, type = "button" } = {}) {
  return h("button", { type, class: `button ${kind}`, test, onclick, title }, name && icon(name), h("span", {}, label));
}

/** A button that shows only its icon; `label` is its name. */
export function iconButton(name, label, onclick, test) {
  return h(
    "button",
    { type: "button", class: "button ghost square", "aria-label": label, title: label, onclick, test },
    icon(name),
  );
}

/** The word for an outcome with its colour beside it. */
export function badge(outcome) {
  const word = outcome || "error";
  return h("span", { class: "badge" }, h("i", { class: `dot o-${known(word)}` }), word);
}

const OUTCOMES = ["exact", "stale", "semantic", "joined", "miss", "bypass", "error"];
export const known = (outcome) => (OUTCOMES.includes(outcome) ? outcome : "error");
export { OUTCOMES };

/** A state with its colour: good, warn, bad or idle. */
export function state(word, tone) {
  return h("span", { class: `state ${tone}` }, h("i", { class: "dot" }), word);
}

/** A bar from 0 to 1; the figure itself stands beside it. */
export function meter(share, tone = "") {
  const bar = h("i", {});
  bar.style.width = `${Math.max(0, Math.min(1, share || 0)) * 100}%`;
  return h("span", { class: `meter ${tone}`, "aria-hidden": "true" }, bar);
}

/** A copyable text in monospace. */
export function copyable(text, label) {
  const copy = iconButton("copy", `Copy ${label}`, async () => {
    const { toast } = await import("./dialogs.js");
    try {
      await navigator.clipboard.writeText(text);
      toast(`Copied ${label}.`);
    } catch {
      toast("The browser does not let this page copy: select the text.", "bad");
    }
  });
  return h("span", { class: "copyable" }, h("code", {}, text), copy);
}

/** A panel of the page: a heading, a remark, and the rest. */
export function panel(title, { note, tools, wide, id } = {}, ...children) {
  const head = h("div", { class: "panel-head" }, h("h2", {}, title), note && h("p", { class: "note" }, note), tools);
  return h("section", { class: `panel ${wide ?? ""}`, "aria-label": title, id }, head, ...children);
}

/** A table that is updated in place. `columns`: [{title, num, wide}]; rows are lists of texts or of functions that
 * make a node, with a key for when it has to be made again: [key, make]. */
export function table(caption, columns) {
  const th = (c) => h("th", { scope: "col", class: c.num ? "num" : "" }, c.title);
  const body = h("tbody");
  const head = h("thead", {}, h("tr", {}, columns.map(th)));
  const empty = h("p", { class: "nothing", hidden: true }, "Nothing yet.");
  const el = h(
    "div",
    { class: "scroll-x", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {}, h("caption", { class: "hidden" }, caption), head, body),
    empty,
  );

  function update(rows) {
    empty.hidden = rows.length > 0;
    head.hidden = rows.length === 0;
    while (body.rows.length > rows.length) body.lastElementChild.remove();
    rows.forEach((cells, r) => {
      const row = body.rows[r] ?? body.insertRow();
      cells.forEach((cell, c) => {
        const td = row.cells[c] ?? row.appendChild(h("td", { class: columns[c].num ? "num" : "" }));
        if (Array.isArray(cell)) sayAll(td, cell[0], cell[1]);
        else say(td, cell);
      });
    });
  }
  return { el, update };
}
