// The entries browser: stored answers, newest first, found by what is known of them.

import * as api from "./api.js";
import { entrySheet } from "./entry.js";
import { filterBar, search, select } from "./filters.js";
import { ago, brief, bytes, compact, count, NONE } from "./format.js";
import { purgeDialog } from "./purge.js";
import { back, go } from "./route.js";
import { button, h, say } from "./ui.js";
import { VirtualList } from "./virtual.js";

const MOST = 1000;
const FIELDS = ["endpoint", "tenant", "model", "tag", "document", "text"];
const phone = matchMedia("(max-width: 720px)");

export function entriesView() {
  const fields = {
    endpoint: select("endpoint", "All endpoints", "filter-endpoint"),
    tenant: select("tenant", "All tenants", "filter-tenant"),
    model: search("model", "Model", { test: "filter-model" }),
    tag: search("tag", "Tag", { test: "filter-tag" }),
    document: search("document", "Document", { test: "filter-document" }),
    text: search("text", "Search", { test: "filter-text" }),
  };
  const purge = button("Purge…", {
    kind: "danger",
    icon: "trash",
    test: "purge-many",
    onclick: () => purgeDialog(query, load),
  });
  const again = button("Refresh", { onclick: () => load() });
  const tally = h("p", { class: "note tally", role: "status" });
  const nothing = h("p", { class: "nothing empty", hidden: true });
  const vlist = new VirtualList({
    label: "Stored answers",
    mark: "entry-row",
    write,
    rest: () => {},
    height: () => (phone.matches ? 66 : 40),
    open: (e) => go("entries", e.key, query),
    columns: [
      ["Made"],
      ["Key"],
      ["Endpoint"],
      ["Model"],
      ["Tenant / user"],
      ["Tokens", "num"],
      ["Size", "num"],
      ["Expires", "num"],
      ["Tags and documents"],
    ].map(([title, cls], i) => ({ title, cls: `c${i} ${cls ?? ""}` })),
  });
  const el = h(
    "div",
    { class: "page tall" },
    h("div", { class: "page-head" }, h("h1", {}, "Entries"), filterBar(fields, again, purge)),
    h("div", { class: "list-frame entries" }, vlist.el, nothing),
    tally,
  );

  let query = {};
  let filters = null;
  let choices = {};
  let list = [];
  let turn = 0;
  let sheet = null;

  function route(at) {
    query = at.query;
    const now = Object.fromEntries(FIELDS.filter((f) => query[f]).map((f) => [f, query[f]]));
    refreshChoices();
    for (const name of FIELDS.slice(2)) fields[name].update(query[name]);
    if (JSON.stringify(now) !== JSON.stringify(filters)) {
      filters = now;
      load();
    }
    if (sheet?.key === at.id) return;
    sheet?.leave();
    sheet = at.id
      ? entrySheet(at.id, {
          query,
          onpurged: load,
          onclose: () => {
            sheet = null;
            back("entries", at.id, query);
            vlist.refocus();
          },
        })
      : null;
  }

  function refreshChoices() {
    fields.endpoint.update(choices.endpoints ?? [], query.endpoint);
    fields.tenant.update(choices.tenants ?? [], query.tenant);
  }

  async function load() {
    const mine = ++turn;
    say(tally, "Loading…");
    try {
      const found = await api.entries({ ...filters, limit: MOST });
      if (mine !== turn) return;
      list = found.entries;
      vlist.set(list);
      nothing.hidden = list.length > 0;
      say(nothing, Object.keys(filters).length ? "No stored answer fits these filters." : "Nothing is stored yet.");
      say(
        tally,
        list.length < MOST
          ? `${count(list.length)} stored answers`
          : `the newest ${count(MOST)}; narrow it down to see others`,
      );
    } catch (error) {
      if (mine === turn) say(tally, error.message);
    }
  }

  function update(overview) {
    choices = overview.choices ?? {};
    refreshChoices();
  }

  return { el, route, update, leave: () => (sheet?.leave(), vlist.leave()) };
}

function write(cells, e, row) {
  row.dataset.key = e.key;
  const [made, key, endpoint, model, who, tokens, size, expires, tags] = cells;
  say(made, brief(e.created));
  say(key, e.key.slice(0, 10));
  say(endpoint, e.endpoint || NONE);
  say(model, e.model || NONE);
  say(who, [e.tenant, e.user].filter(Boolean).join(" / ") || NONE);
  say(tokens, compact(e.tokens));
  say(size, bytes(e.bytes));
  say(expires, e.expires ? ago(e.expires) : "never");
  say(tags, [...e.tags.map((t) => `#${t}`), ...e.documents].join("  "));
}
