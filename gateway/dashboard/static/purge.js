// Take many answers away, by criteria that must all hold: counted first, then confirmed.

import * as api from "./api.js";
import { toast } from "./dialogs.js";
import { count } from "./format.js";
import { button, h, say } from "./ui.js";

const FIELDS = [
  ["endpoint", "Endpoint", ""],
  ["model", "Model", ""],
  ["tenant", "Tenant", ""],
  ["user", "User", ""],
  ["tags", "Tags", "all of them, with commas"],
  ["documents", "Documents", "all of them, with commas"],
  ["older_than", "Older than", "30m, 12h, 7d"],
  ["like", "Question is like", "any wording"],
];
const LISTS = ["tags", "documents"];

/** Opens the dialog, filled with what the view shows; `done` is called after a purge. */
export function purgeDialog(query, done) {
  const given = {
    endpoint: query.endpoint,
    model: query.model,
    tenant: query.tenant,
    tags: query.tag,
    documents: query.document,
  };
  const inputs = Object.fromEntries(
    FIELDS.map(([name, , hint]) => [
      name,
      h("input", {
        name,
        placeholder: hint,
        value: given[name] ?? "",
        autocomplete: "off",
        spellcheck: "false",
        oninput: unsure,
      }),
    ]),
  );
  const soft = h("input", { type: "checkbox", name: "soft", onchange: unsure });
  const verdict = h("p", { class: "verdict-line", role: "status" }, "Count first what would go.");
  const counting = button("Count", { type: "submit", test: "purge-count" });
  const act = button("Purge", { kind: "danger solid", test: "confirm", onclick: purge });
  const form = h(
    "form",
    { novalidate: true, onsubmit: (event) => (event.preventDefault(), look()) },
    h(
      "div",
      { class: "form-grid" },
      FIELDS.map(([name, label]) => h("label", { class: "field" }, h("span", {}, label), inputs[name])),
    ),
    h(
      "label",
      { class: "check" },
      soft,
      h("span", {}, "Soft: mark them stale instead, so that they can still serve while a new answer is made"),
    ),
    verdict,
    h("div", { class: "dialog-foot" }, button("Cancel", { onclick: () => box.close() }), counting, act),
  );
  const box = h(
    "dialog",
    { class: "box wide", test: "purge-dialog", "aria-labelledby": "purge-title" },
    h("h2", { id: "purge-title" }, "Purge stored answers"),
    h("p", { class: "note" }, "An answer goes if everything that is filled in holds for it."),
    form,
  );
  act.disabled = true;
  box.addEventListener("close", () => {
    document.body.append(document.getElementById("toasts"));
    box.remove();
  });
  document.body.append(box);
  box.showModal();

  function criteria() {
    const filled = FIELDS.map(([name]) => [name, inputs[name].value.trim()]).filter(([, v]) => v);
    const body = Object.fromEntries(
      filled.map(([n, v]) => [
        n,
        LISTS.includes(n)
          ? v
              .split(",")
              .map((t) => t.trim())
              .filter(Boolean)
          : v,
      ]),
    );
    return soft.checked ? { ...body, soft: true } : body;
  }

  function unsure() {
    act.disabled = true;
    say(act, "Purge");
    verdict.className = "verdict-line";
    say(verdict, "Count first what would go.");
  }

  function fail(error) {
    verdict.className = "verdict-line problem";
    say(verdict, error.message);
  }

  async function look() {
    unsure();
    const asked = JSON.stringify(criteria());
    try {
      const { purged } = await api.purge({ ...criteria(), dry_run: true });
      if (asked !== JSON.stringify(criteria())) return; // changed meanwhile
      const answers = `${count(purged)} ${purged === 1 ? "answer" : "answers"}`;
      say(verdict, purged ? `This ${soft.checked ? "marks stale" : "removes"} ${answers}.` : "No stored answer fits.");
      act.disabled = !purged;
      if (purged) say(act, `${soft.checked ? "Mark" : "Purge"} ${answers}`);
    } catch (error) {
      fail(error);
    }
  }

  async function purge() {
    act.disabled = true;
    try {
      const { purged } = await api.purge(criteria());
      box.close();
      toast(`${count(purged)} ${purged === 1 ? "answer" : "answers"} ${soft.checked ? "marked stale" : "purged"}.`);
      done();
    } catch (error) {
      fail(error);
    }
  }
}
