// The list of requests: newest first, loaded a thousand at a time, with new ones arriving on top. It never moves under
// the reader's hand: while it is scrolled, held or being read, new ones wait behind a button.

import * as api from "./api.js";
import { decisionSheet } from "./decision.js";
import { filterBar, search, select } from "./filters.js";
import { count } from "./format.js";
import { fits, writeRow } from "./request_row.js";
import { back, go } from "./route.js";
import { button, h, icon, OUTCOMES, say } from "./ui.js";
import { VirtualList } from "./virtual.js";

const PAGE = 1000;
const MOST = 100_000;
const TICK = 200; // the most that the stream sends at once: beyond it something is missing
const FIELDS = ["endpoint", "tenant", "outcome", "status", "model", "text"];
const phone = matchMedia("(max-width: 720px)");

export function requestsView() {
  const fields = {
    endpoint: select("endpoint", "All endpoints", "filter-endpoint"),
    tenant: select("tenant", "All tenants", "filter-tenant"),
    outcome: select("outcome", "All outcomes", "filter-outcome"),
    status: select("status", "Any status", "filter-status"),
    model: search("model", "Model", { test: "filter-model" }),
    text: search("text", "Id, user, key, error", { test: "filter-text" }),
  };
  const hold = button("Pause", { icon: "pause", test: "pause", onclick: () => setHeld(!held) });
  const fresh = button("", { kind: "primary small fresh", icon: "up", test: "show-new", onclick: showNew });
  const tally = h("p", { class: "note tally", role: "status" });
  const nothing = h("p", { class: "nothing empty" });
  const vlist = new VirtualList({
    label: "Requests",
    mark: "request-row",
    write: writeRow,
    rest: more,
    height: () => (phone.matches ? 66 : 40),
    open: (d) => go("requests", d.id, query),
    columns: [
      ["Time"],
      ["Outcome"],
      ["Endpoint"],
      ["Model"],
      ["Tenant / user"],
      ["Time taken", "num"],
      ["Tokens", "num"],
      ["Saved", "num"],
      ["Why"],
    ].map(([title, cls], i) => ({ title, cls: `c${i} ${cls ?? ""}` })),
  });
  const el = h(
    "div",
    { class: "page tall" },
    h("div", { class: "page-head" }, h("h1", {}, "Requests"), filterBar(fields, hold)),
    h("div", { class: "list-frame requests" }, fresh, vlist.el, nothing),
    tally,
  );
  fresh.hidden = nothing.hidden = true;

  let query = {};
  let filters = null;
  let choices = {};
  let list = [];
  let waiting = []; // newest first
  let early = []; // what has come while the first page was under way
  let missed = false; // more has come than was sent
  let next = null;
  let busy = false;
  let held = false;
  let turn = 0; // of the filters: what was asked under other ones is not shown
  let sheet = null;
  const ids = new Set();

  function route(at) {
    query = at.query;
    const now = Object.fromEntries(FIELDS.filter((f) => query[f]).map((f) => [f, query[f]]));
    refreshChoices();
    fields.model.update(query.model);
    fields.text.update(query.text);
    if (JSON.stringify(now) !== JSON.stringify(filters)) {
      filters = now;
      load();
    }
    openSheet(at.id);
  }

  function refreshChoices() {
    fields.endpoint.update(choices.endpoints ?? [], query.endpoint);
    fields.tenant.update(choices.tenants ?? [], query.tenant);
    fields.outcome.update(
      OUTCOMES.filter((o) => o !== "error"),
      query.outcome,
    );
    fields.status.update(["ok", "error"], query.status);
  }

  function openSheet(id) {
    if (sheet?.id === id) return;
    sheet?.leave();
    sheet = null;
    if (!id) return;
    const step = (by) => {
      const to = list[list.findIndex((d) => d.id === id) + by];
      if (to) go("requests", to.id, query);
    };
    sheet = decisionSheet(
      id,
      list.find((d) => d.id === id),
      {
        query,
        step,
        onclose: () => {
          sheet = null;
          back("requests", id, query);
          vlist.refocus();
        },
      },
    );
  }

  async function load() {
    const mine = ++turn;
    [list, waiting, early, missed, next, busy] = [[], [], [], false, null, true];
    ids.clear();
    vlist.set(list);
    say(tally, "Loading…");
    showWaiting();
    try {
      const page = await api.decisions({ ...filters, limit: PAGE });
      if (mine !== turn) return;
      busy = false;
      take(page);
      vlist.toTop();
      arrive(early.splice(0));
    } catch (error) {
      if (mine === turn) failedToLoad(error);
    }
  }

  function take(page) {
    const unknown = page.decisions.filter((d) => !ids.has(d.id));
    for (const d of unknown) ids.add(d.id);
    list = list.concat(unknown);
    next = list.length < MOST ? page.next : null;
    show();
  }

  function show(added = 0) {
    vlist.set(list, added);
    nothing.hidden = list.length > 0;
    const narrowed = Object.keys(filters ?? {}).length > 0;
    say(nothing, narrowed ? "No request fits these filters." : "No requests yet. New ones appear here by themselves.");
    say(tally, list.length ? `${count(list.length)} requests${next ? ", more when you scroll" : ""}` : "");
  }

  function failedToLoad(error) {
    busy = false;
    say(tally, error.message);
  }

  async function more(last) {
    if (busy || !next || last < list.length - 300) return;
    busy = true;
    const mine = turn;
    try {
      const page = await api.decisions({ ...filters, limit: PAGE, before: next });
      if (mine !== turn) return;
      busy = false;
      take(page);
    } catch (error) {
      if (mine === turn) failedToLoad(error);
    }
  }

  /** Decisions from the stream. */
  function arrive(decisions) {
    if (busy && !list.length) {
      early.unshift(...decisions);
      return;
    }
    if (decisions.length >= TICK) return catchUp();
    const unknown = decisions.filter((d) => !ids.has(d.id) && fits(d, filters)); // newest first
    if (!unknown.length) return;
    for (const d of unknown) ids.add(d.id);
    waiting = [...unknown, ...waiting];
    if (waiting.length > PAGE) [waiting, missed] = [[], true];
    if (!held && !sheet && vlist.atTop && !vlist.hasFocus) showNew();
    else showWaiting();
  }

  /** Ask for what the stream could not send: it is bounded, and may have been away. */
  async function catchUp() {
    const newest = waiting[0] ?? list[0];
    if (!newest) return load();
    if (missed || busy) return;
    const mine = turn;
    busy = true;
    try {
      const page = await api.decisions({ ...filters, limit: PAGE, after: newest.id });
      busy = false;
      if (mine !== turn) return;
      if (page.decisions.length < TICK) arrive(page.decisions);
      else {
        missed = true;
        if (!held && !sheet && vlist.atTop && !vlist.hasFocus) showNew();
        else showWaiting();
      }
    } catch {
      busy = false; // the next one asks again
    }
  }

  function showNew() {
    if (missed) return load();
    const added = waiting.length;
    list = [...waiting, ...list];
    for (const d of list.splice(MOST)) ids.delete(d.id);
    waiting = [];
    show(added);
    showWaiting();
    if (!vlist.atTop) vlist.toTop();
  }

  function showWaiting() {
    const n = waiting.length;
    fresh.hidden = !n && !missed;
    say(fresh.lastChild, missed ? "Many new" : `${count(n)} new`);
  }

  function setHeld(now) {
    held = now;
    hold.setAttribute("aria-pressed", String(held));
    say(hold.lastChild, held ? "Resume" : "Pause");
    hold.firstChild.replaceWith(icon(held ? "play" : "pause"));
    if (!held && vlist.atTop) showNew();
  }

  function update(overview) {
    choices = overview.choices ?? {};
    refreshChoices();
  }

  return { el, route, update, arrive, catchUp, leave: () => (sheet?.leave(), vlist.leave()) };
}
