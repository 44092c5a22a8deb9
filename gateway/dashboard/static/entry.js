// One stored answer: its text, where it comes from, and the way to take it away.

import * as api from "./api.js";
import { facts, purgeKey } from "./decision.js";
import { sheet } from "./dialogs.js";
import { ago, bytes, count, duration, moment, ms, usd } from "./format.js";
import { href, shared } from "./route.js";
import { button, copyable, h } from "./ui.js";

export function entrySheet(key, { query, onclose, onpurged }) {
  const it = sheet("Stored answer", { test: "entry-detail", onclose });
  load();
  return { key, leave: it.leave };

  async function load() {
    try {
      const { entries } = await api.entries({ key });
      show(entries[0]);
    } catch (error) {
      if (error.status === 404) it.body.replaceChildren(h("div", { class: "lead" }, copyable(key, "the key"), gone()));
      else it.body.replaceChildren(h("p", { class: "problem" }, error.message));
    }
  }

  function show(e) {
    const { text, json } = read(e.answer);
    const list = (values) =>
      values.length > 0 &&
      h(
        "div",
        { class: "chips" },
        values.map((v) => h("span", { class: "chip" }, v)),
      );
    const parts = [
      h(
        "div",
        { class: "lead" },
        copyable(e.key, "the key"),
        h("p", { class: "note" }, `made ${ago(e.created)}${e.expires ? `, expires ${ago(e.expires)}` : ""}`),
      ),
      h(
        "section",
        { "aria-label": "Answer" },
        h("h3", {}, "Answer"),
        h("pre", { class: "answer", tabindex: "0" }, text || "(no text)"),
        h("details", {}, h("summary", {}, "As it is stored"), h("pre", { class: "json", tabindex: "0" }, json)),
      ),
      h(
        "section",
        { "aria-label": "Facts" },
        h("h3", {}, "Facts"),
        facts([
          ["Endpoint", e.endpoint],
          ["API", e.api],
          ["Model", e.model],
          ["Backend", e.backend],
          ["Tenant", e.tenant],
          ["User", e.user],
          ["Made", moment(e.created)],
          ["Expires", e.expires ? moment(e.expires) : "never"],
          ["Age", duration(e.age)],
          ["Size", bytes(e.bytes)],
          ["Tokens", count(e.tokens)],
          [
            "It cost",
            e.cost && [e.cost.usd !== null && usd(e.cost.usd), e.cost.ms && ms(e.cost.ms)].filter(Boolean).join(" · "),
          ],
          ["Provider's id", e.upstream_id && copyable(e.upstream_id, "the provider's id")],
        ]),
      ),
      e.tags.length > 0 && h("section", { "aria-label": "Tags" }, h("h3", {}, "Tags"), list(e.tags)),
      e.documents.length > 0 &&
        h("section", { "aria-label": "Documents" }, h("h3", {}, "Documents"), list(e.documents)),
    ];
    it.body.replaceChildren(...parts.filter(Boolean));
    it.foot.replaceChildren(
      h(
        "a",
        { class: "button", href: href("requests", "", { ...shared(query), text: e.key }) },
        "Requests with this key",
      ),
      button("Purge this answer", {
        kind: "danger",
        icon: "trash",
        test: "purge-entry",
        onclick: async () => {
          if (!(await purgeKey(e.key))) return;
          await onpurged(); // the focus goes back to what is left of the list
          it.el.close();
        },
      }),
    );
  }
}

function gone() {
  return h(
    "p",
    { class: "nothing" },
    "There is no answer under this key any more: it has expired, or was purged or evicted.",
  );
}

/** The words of a stored answer, and all of it set out for reading. */
function read(answer) {
  let whole;
  try {
    whole = JSON.parse(answer);
  } catch {
    return { text: answer ?? "", json: answer ?? "" };
  }
  const list = (value) => (Array.isArray(value) ? value : []);
  const choices = list(whole?.choices);
  const words = choices.map((c) => {
    const content = c?.message?.content ?? c?.text;
    const calls = list(c?.message?.tool_calls).map((t) => `${t?.function?.name}(${t?.function?.arguments ?? ""})`);
    return [
      typeof content === "string" ? content : content && JSON.stringify(content, null, 2),
      c?.message?.refusal,
      ...calls,
    ]
      .filter(Boolean)
      .join("\n");
  });
  return { text: words.join("\n\n———\n\n"), json: JSON.stringify(whole, null, 2) };
}
