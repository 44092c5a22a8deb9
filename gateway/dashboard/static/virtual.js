// A list of any length of which only what can be seen is in the page: rows of one height, their nodes used again while
// scrolling. It is a grid for screen readers, and one stop for the Tab key: arrows move inside, Enter opens.

import { h } from "./ui.js";

const SPARE = 4; // rows above and below what can be seen

/** `columns` [{title, cls}]; `write(cells, item, row)` fills a row's cells; `open(item)` is the click; `rest(index)` is
 * called with the last index in sight, to load more. `height()` is a row's height in pixels. */
export class VirtualList {
  #items = [];
  #pool = [];
  #active = 0;
  #room = 0; // height of what can be seen
  #queued = false;

  constructor({ label, columns, write, open, rest, height, mark }) {
    Object.assign(this, { write, open, rest, height, mark, columns });
    this.space = h("div", { class: "vspace", role: "rowgroup" });
    const head = h(
      "div",
      { class: "vhead vrow-grid", role: "row", "aria-rowindex": "1" },
      columns.map((c) => h("span", { role: "columnheader", class: c.cls ?? "" }, c.title)),
    );
    this.el = h(
      "div",
      { class: "vlist", role: "grid", "aria-label": label, "aria-rowcount": "-1", tabindex: "-1" },
      head,
      this.space,
    );
    this.el.addEventListener("scroll", () => this.#queue(), { passive: true });
    this.el.addEventListener("keydown", (event) => this.#key(event));
    this.el.addEventListener("click", (event) => {
      const row = event.target.closest("[role=row]");
      if (row?.item) this.#open(row.at);
    });
    this.watch = new ResizeObserver(() => {
      this.#room = this.el.clientHeight;
      this.#render(true);
    });
    this.watch.observe(this.el);
  }

  get atTop() {
    return this.el.scrollTop < this.height() / 2;
  }

  get hasFocus() {
    return this.el.contains(document.activeElement);
  }

  /** Show these items. `added` of them are new at the top: what was looked at stays where it is. */
  set(items, added = 0) {
    const stay = added && !this.atTop;
    this.#items = items;
    this.#active = Math.min(Math.max(0, this.#active + (this.hasFocus ? added : 0)), Math.max(0, items.length - 1));
    this.space.style.height = `${items.length * this.height()}px`;
    this.el.setAttribute("aria-rowcount", String(items.length + 1));
    if (stay) this.el.scrollTop += added * this.height();
    this.#render(true);
  }

  toTop() {
    this.el.scrollTop = 0;
    this.#active = 0;
    this.#render(true);
  }

  /** Give the focus back to the row that was opened. */
  refocus() {
    if (this.#items.length) this.#go(this.#active);
    else this.el.focus();
  }

  leave() {
    this.watch.disconnect();
  }

  #queue() {
    if (this.#queued) return;
    this.#queued = true;
    requestAnimationFrame(() => {
      this.#queued = false;
      this.#render(false);
    });
  }

  #render(anew) {
    const size = this.height();
    if (anew) this.space.style.height = `${this.#items.length * size}px`;
    const first = Math.max(0, Math.floor(this.el.scrollTop / size) - SPARE);
    const seen = Math.ceil(this.#room / size) + 2 * SPARE;
    const last = Math.min(this.#items.length, first + seen);
    while (this.#pool.length < seen) this.#pool.push(this.space.appendChild(this.#make()));
    const held = this.#pool.find((row) => row === document.activeElement);
    const heldAt = held?.at;
    for (let at = first; at < first + this.#pool.length; at++) {
      const row = this.#pool[at % this.#pool.length];
      const item = at < last ? this.#items[at] : null;
      if (row.item === item && row.at === at && !anew) continue;
      if (row.hidden !== !item) row.hidden = !item;
      if (item) {
        if (row.at !== at || anew) row.style.transform = `translateY(${at * size}px)`;
        if (row.item !== item) this.write(row.cells, item, row);
        row.setAttribute("aria-rowindex", String(at + 2));
      }
      row.item = item;
      row.at = at;
    }
    // The Tab key must find a row, even if the one it was on has been scrolled away.
    const stop = this.#active >= first && this.#active < last ? this.#active : Math.min(first + SPARE, last - 1);
    for (const row of this.#pool) {
      if (row.stop === (row.at === stop)) continue;
      row.stop = row.at === stop;
      row.tabIndex = row.stop ? 0 : -1;
    }
    if (held && held.at !== heldAt) (this.#node(this.#active) ?? this.el).focus({ preventScroll: true });
    if (this.#items.length) this.rest(last);
  }

  #make() {
    const cells = this.columns.map((c) => h("span", { role: "gridcell", class: c.cls ?? "" }));
    const row = h("div", { class: "vrow vrow-grid", role: "row", tabindex: "-1" }, cells);
    Object.assign(row, { cells, item: null, at: -1, stop: false });
    if (this.mark) row.dataset.test = this.mark;
    return row;
  }

  #node(at) {
    return this.#pool.find((row) => row.at === at && row.item);
  }

  #open(at) {
    this.#active = at;
    this.open(this.#items[at]);
  }

  #key(event) {
    const page = Math.max(1, Math.floor(this.el.clientHeight / this.height()) - 2);
    const from = document.activeElement?.at ?? this.#active;
    const moves = {
      ArrowDown: from + 1,
      ArrowUp: from - 1,
      PageDown: from + page,
      PageUp: from - page,
      Home: 0,
      End: this.#items.length - 1,
    };
    if (event.key in moves) this.#go(moves[event.key]);
    else if ((event.key === "Enter" || event.key === " ") && document.activeElement?.item) this.#open(from);
    else return;
    event.preventDefault();
  }

  #go(at) {
    if (!this.#items.length) return;
    this.#active = Math.max(0, Math.min(at, this.#items.length - 1));
    const size = this.height();
    const top = this.#active * size;
    const room = this.el.clientHeight - this.el.firstElementChild.offsetHeight;
    if (top < this.el.scrollTop) this.el.scrollTop = top;
    else if (top + size > this.el.scrollTop + room) this.el.scrollTop = top + size - room;
    this.#render(false);
    this.#node(this.#active)?.focus({ preventScroll: true });
  }
}
