// One request in full: what became of it, why, where its time went, what it cost, and what can be done about it.

import * as api from "./api.js";
import { confirm, sheet, toast } from "./dialogs.js";
import { count, duration, moment, ms, NONE, usd } from "./format.js";
import { reason, story } from "./labels.js";
import { href, shared } from "./route.js";
import { badge, button, copyable, h, iconButton, state } from "./ui.js";
import { waterfall } from "./waterfall.js";

/** Opens the sheet of the decision `id`; `known` is what the list has of it. step(±1) goes to the next older or newer. */
export function decisionSheet(id, known, { query, step, onclose }) {
  const tools = [iconButton("up", "Newer request", () => step(-1)), iconButton("down", "Older request", () => step(1))];
  const it = sheet("Request", { test: "decision-detail", onclose, tools });
  if (known) show(it, known, query);
  api.decision(id).then(
    (d) => show(it, d, query),
    (error) => {
      if (!known) it.body.replaceChildren(h("p", { class: "problem" }, error.message));
    },
  );
  return { id, leave: it.leave };
}

function show(it, d, query) {
  const semantic = d.tiers.find((t) => t.tier === "semantic" && t.result === "hit" && t.source);
  it.body.replaceChildren(
    h(
      "div",
      { class: "lead" },
      h(
        "div",
        { class: "row wrap" },
        bigBadge(d),
        state(`status ${d.status || NONE}`, d.status >= 400 ? "bad" : "good"),
        h("time", { class: "note" }, moment(d.time)),
      ),
      copyable(d.id, "the id"),
    ),
    h(
      "section",
      { class: "why", "aria-label": "Why" },
      h("p", { class: "story", test: "decision-why" }, story(d)),
      differs(d.why, query),
    ),
    section("Tiers asked", tiers(d, query)),
    section("Where the time went", timing(d), waterfall(d)),
    section(
      "Tokens",
      facts([
        ["Prompt", count(d.tokens.input)],
        ["Completion", count(d.tokens.output)],
        ["Served", count(d.tokens.served)],
        ["Unserved", count(d.tokens.unserved)],
        ["Consumed", count(d.tokens.consumed)],
        ["Saved", count(d.tokens.saved)],
        ["Billable", count(d.tokens.billable)],
        d.tokens.cached !== undefined && ["Cached by the provider", count(d.tokens.cached)],
        d.tokens.estimated > 0 && ["Estimated", count(d.tokens.estimated)],
      ]),
    ),
    section(
      "Money",
      facts([
        ["Consumed", usd(d.usd.consumed)],
        ["Billable", usd(d.usd.billable)],
        ["Saved", usd(d.usd.saved)],
        ["Cache's own work", usd(d.usd.overhead)],
      ]),
    ),
    section(
      "Facts",
      facts([
        ["Endpoint", d.endpoint],
        ["API", d.api],
        ["Model", d.model],
        ["Backend", d.backend],
        d.failures.length > 0 && ["Failed before", d.failures.map((f) => `${f.backend}: ${f.error}`).join(", ")],
        ["Tenant", d.tenant],
        ["User", d.user],
        ["Wire form", d.stream ? "stream" : "whole answer"],
        ["Age of the answer", d.age === null ? NONE : duration(d.age)],
        ["Documents", d.documents.length && d.documents.join(", ")],
        ["Stored", d.stored ? "yes" : d.not_stored ? `no: ${reason(d.not_stored)}` : "no"],
        ["Error", d.error],
        ["Provider's id", d.upstream_id && copyable(d.upstream_id, "the provider's id")],
        ["Key", d.key && copyable(d.key, "the key")],
      ]),
    ),
    section("From the shell", h("div", { class: "command" }, copyable(`refrain why ${d.id}`, "the command"))),
  );
  it.foot.replaceChildren(...actions(d, semantic, query));
}

function section(title, ...rest) {
  return h("section", { "aria-label": title }, h("h3", {}, title), rest);
}

function bigBadge(d) {
  const made = badge(d.outcome);
  made.classList.add("big");
  return made;
}

function differs(why, query) {
  if (!why) return null;
  const names = why.differs ?? [];
  return [
    names.length > 0 &&
      h(
        "div",
        { class: "chips" },
        h("span", { class: "note" }, "differs in"),
        names.map((n) => h("span", { class: "chip" }, String(n))),
      ),
    why.nearest && h("a", { href: href("entries", why.nearest, shared(query)) }, "See the nearest stored answer"),
  ];
}

const TONES = { hit: "good", miss: "idle", skipped: "idle" };

function tiers(d, query) {
  if (!d.tiers.length) return h("p", { class: "nothing" }, "None.");
  return h(
    "ol",
    { class: "tiers" },
    d.tiers.map((t) =>
      h(
        "li",
        {},
        h("b", {}, t.tier),
        state(t.result, TONES[t.result] ?? "idle"),
        h(
          "span",
          { class: "note" },
          [
            t.why && reason(t.why),
            t.similarity !== undefined && `similarity ${t.similarity.toFixed(4)}`,
            t.tokens !== undefined && `${count(t.tokens)} tokens of the prompt were there`,
            t.ttl !== undefined && `fresh for ${duration(t.ttl)} more`,
          ]
            .filter(Boolean)
            .join(" · "),
        ),
        t.source &&
          h("a", { href: href("entries", t.source, shared(query)) }, t.result === "hit" ? "the answer" : "the nearest"),
      ),
    ),
  );
}

function timing(d) {
  const parts = [`${ms(d.ms)} in all`];
  if (d.first_ms !== null && d.first_ms !== undefined) parts.push(`first byte after ${ms(d.first_ms)}`);
  if (d.predicted_ms) parts.push(`predicted for the call: ${ms(d.predicted_ms)}`);
  if (d.ms_saved) parts.push(`saved ${ms(d.ms_saved)}`);
  return h("p", { class: "note figure" }, parts.join(" · "));
}

/** Pairs of a name and a text or a node; what is empty shows a dash. */
export function facts(pairs) {
  return h(
    "dl",
    { class: "facts" },
    pairs.filter(Boolean).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value || NONE))),
  );
}

function actions(d, semantic, query) {
  const key = semantic?.source ?? d.key;
  const judge = async (correct) => {
    try {
      await api.feedback(d.id, correct);
      toast(correct ? "Marked as right." : "Marked as wrong: this question does not get that answer again.");
      right.setAttribute("aria-pressed", String(correct));
      wrong.setAttribute("aria-pressed", String(!correct));
    } catch (error) {
      toast(error.message, "bad");
    }
  };
  const right = button("Right answer", { icon: "check", test: "mark-right", onclick: () => judge(true) });
  const wrong = button("Wrong answer", {
    kind: "danger",
    icon: "close",
    test: "mark-wrong",
    onclick: () => judge(false),
  });
  return [
    ...(semantic ? [right, wrong] : []),
    key && h("a", { class: "button", href: href("entries", key, shared(query)) }, "See its entry"),
    key &&
      button("Purge its entry", { kind: "danger", icon: "trash", test: "purge-entry", onclick: () => purgeKey(key) }),
  ].filter(Boolean);
}

/** Ask, then take one entry away; true if it is gone. */
export async function purgeKey(key) {
  if (
    !(await confirm(
      "Purge this answer?",
      "The next request like it goes to the backend again. This cannot be undone.",
      "Purge it",
    ))
  )
    return false;
  try {
    const { purged } = await api.purge({ key });
    toast(purged ? "The answer is gone." : "There was no such answer any more.");
    return true;
  } catch (error) {
    toast(error.message, "bad");
    return false;
  }
}
