// A request in one line of the list, and whether it belongs there.

import { brief, count, ms, NONE, usd } from "./format.js";
import { shortly } from "./labels.js";
import { badge, known, say } from "./ui.js";

const failed = (d) => d.error !== null;

/** Does a decision meet the filters? The same as the gateway says of those it is asked for. */
export function fits(d, filters) {
  const { outcome, status, model, text, endpoint, tenant } = filters;
  const has = (value, part) =>
    String(value ?? "")
      .toLowerCase()
      .includes(part.toLowerCase());
  return (
    (!outcome || (d.outcome ?? "error") === outcome) &&
    (!status || failed(d) === (status === "error")) &&
    (!model || d.model === model) &&
    (!endpoint || d.endpoint === endpoint) &&
    (!tenant || d.tenant === tenant) &&
    (!text || [d.id, d.model, d.user, d.key, d.error].some((v) => has(v, text)))
  );
}

/** Fills the cells of a row, which may have shown another request before. */
export function writeRow(cells, d, row) {
  row.dataset.id = d.id;
  if (row.failed !== failed(d)) row.classList.toggle("failed", (row.failed = failed(d)));
  const word = failed(d) ? `error ${d.status || ""}`.trim() : d.outcome || "error";
  const [time, outcome, endpoint, model, who, took, tokens, saved, why] = cells;
  say(time, brief(d.time));
  if (row.word !== word) {
    row.word = word;
    if (!outcome.firstChild) outcome.append(badge(""));
    outcome.firstChild.firstChild.className = `dot o-${failed(d) ? "error" : known(word)}`;
    outcome.firstChild.lastChild.data = word;
  }
  say(endpoint, d.endpoint || NONE);
  say(model, d.model || NONE);
  say(who, [d.tenant, d.user].filter(Boolean).join(" / ") || NONE);
  say(took, ms(d.ms));
  say(tokens, d.tokens?.served ? count(d.tokens.served) : NONE);
  say(saved, d.usd?.saved ? usd(d.usd.saved) : d.tokens?.saved ? `${count(d.tokens.saved)} tok` : "");
  say(why, shortly(d));
}
