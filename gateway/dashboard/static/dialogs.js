// Toasts, the question before something is taken away, and the sheet at the side. The browser's own <dialog> keeps the
// focus inside and closes on Escape.

import { button, h, iconButton } from "./ui.js";

const SHOWN = 5000; // ms

/** A line at the bottom that goes by itself; screen readers hear it. `tone` "bad" for failures. */
export function toast(text, tone = "") {
  const place = document.getElementById("toasts");
  // Outside an open dialog everything is covered and inert.
  const host = [...document.querySelectorAll("dialog[open]")].at(-1) ?? document.body;
  if (place.parentNode !== host) host.append(place);
  const line = h("div", { class: `toast ${tone}`, test: "toast" }, text);
  place.append(line);
  setTimeout(() => line.remove(), SHOWN);
}

function remove(dialog) {
  const place = document.getElementById("toasts");
  if (dialog.contains(place)) document.body.append(place);
  dialog.remove();
}

/** Ask before an act; true if it was confirmed. */
export function confirm(title, text, act) {
  return new Promise((done) => {
    const box = h(
      "dialog",
      { class: "box", "aria-labelledby": "confirm-title", "aria-describedby": "confirm-text" },
      h("h2", { id: "confirm-title" }, title),
      h("p", { id: "confirm-text", class: "note" }, text),
      h(
        "div",
        { class: "dialog-foot" },
        button("Cancel", { onclick: () => box.close() }),
        button(act, { kind: "danger solid", test: "confirm", onclick: () => box.close("yes") }),
      ),
    );
    box.addEventListener("close", () => {
      remove(box);
      done(box.returnValue === "yes");
    });
    document.body.append(box);
    box.showModal();
  });
}

/** A panel over the right side of the page. `onclose` is called when the reader closes it. `body` and `foot` are there
 * to be filled, `tools` go into its head. */
export function sheet(title, { test, onclose, tools = [] }) {
  const body = h("div", { class: "sheet-body" });
  const foot = h("div", { class: "sheet-foot" });
  const heading = h("h2", { id: `${test}-title`, tabindex: "-1" }, title);
  let quiet = false;
  const el = h(
    "dialog",
    { class: "sheet", test, "aria-labelledby": `${test}-title` },
    h(
      "header",
      { class: "sheet-head" },
      heading,
      ...tools,
      iconButton("close", "Close", () => el.close()),
    ),
    body,
    foot,
  );
  el.addEventListener("click", (event) => event.target === el && el.close());
  el.addEventListener("close", () => {
    remove(el);
    if (!quiet) onclose();
  });
  document.body.append(el);
  el.showModal();
  heading.focus();
  return {
    el,
    body,
    foot,
    /** Close without telling: the address has changed already. */
    leave() {
      quiet = true;
      el.close();
    },
  };
}
