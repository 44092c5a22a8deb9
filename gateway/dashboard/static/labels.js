// Codes in words. A code that is not here is shown as it is: tiers and upstreams may have new ones.

import { duration } from "./format.js";

const REASONS = {
  // why every cache was passed by
  tier_off: "this endpoint keeps no answers",
  tier_not_asked: "the request asked for other tiers only",
  no_store: "the request said no-store",
  store_requested: "the provider was asked to keep the answer",
  stateful: "it goes on from what the provider keeps",
  hosted_tool: "a tool runs at the provider",
  audio: "it asks for sound",
  sampled: "this endpoint does not reuse samples",
  // what the exact tier says
  no_cache: "a fresh answer was asked for",
  over_budget: "it would not have fitted the budget",
  expired: "the stored answer was past its life",
  older_than_asked: "older than the request accepts",
  made_in_future: "by its date made in the future",
  byte_identical: "the same bytes as before",
  stale_while_revalidate: "past its life, and being renewed",
  stale_if_error: "stands in for an error of the backend",
  fallback: "kept from the backend that stands in for one that has failed",
  alias: "remembered from an earlier look-up",
  first_request: "the first of its kind",
  purged_or_evicted: "answered before, but purged or evicted since",
  not_stored_before: "the same came before, but its answer was not kept",
  // why the semantic tier compared nothing
  not_chat: "no chat request",
  tools: "the request has tools",
  several_choices: "several choices are wanted",
  logprobs: "log probabilities are wanted",
  tool_results: "results of tools in the conversation",
  not_text: "more than text in the conversation",
  not_a_user_turn: "the last turn is not the user's",
  too_long: "longer than max_words",
  about_now: "the question is about now",
  failed: "the tier failed",
  embedder_starting: "the embedder was still starting",
  embedder_ready: "the embedder had just become ready",
  embedder_deadline: "the embedder was too slow",
  embedder_busy: "the embedder was busy",
  embedder_failed: "the embedder has failed",
  embedder_unavailable: "the embedder cannot be reached",
  embedder_bad_vector: "the embedder gave no usable vector",
  first_in_context: "the first question of its context",
  // why it refused its nearest candidate
  number: "numbers differ",
  unit: "units differ",
  date: "dates or times differ",
  version: "versions differ",
  language: "languages differ",
  format: "formats differ",
  manner: "the manner asked for differs",
  action: "what is to be done differs",
  asks: "what is asked for differs",
  sign: "signs of arithmetic differ",
  quoted: "quoted texts differ",
  code: "code differs",
  antonym: "one says the contrary",
  negation: "one is negated",
  direction: "places exchanged",
  name: "names differ",
  length: "one is far longer",
  template: "a long common text differs in its short part",
  foreign: "words differ, in another language",
  swapped: "a word is exchanged",
  words: "several words differ",
  scope: "one is wider or narrower",
  extra: "one has more words",
  similarity: "not similar enough",
  margin: "too near to another answer",
  gone: "the answer is no longer kept",
  reported_wrong: "reported as wrong",
  nothing_near: "nothing near is known",
  // why an answer was not stored
  no_end_marker: "its stream ended without an end marker",
  ttl_zero: "it was to live for no time",
  policy_changed: "the configuration changed meanwhile",
  error_in_answer: "it held an error",
  no_choices: "it did not have the shape of an answer",
  choices_missing: "choices were missing",
  empty: "it was empty",
  too_large: "larger than store.max_entry",
  purged_meanwhile: "a purge met it while it was made",
  store_unavailable: "the store did not answer",
  finish_reason_length: "cut off at its greatest length",
  finish_reason_content_filter: "filtered by the provider",
  finish_reason_missing: "it did not say that it had ended",
  client_left: "its client left before it was whole",
};

const PHASES = {
  auth: "Authentication",
  parse: "Parsing",
  exact: "Exact look-up",
  semantic: "Semantic look-up",
  join: "Joined flight",
  queue: "Waiting for the backend",
  fallback: "Backends that failed",
  upstream: "Upstream call",
  first_byte: "First byte",
  upstream_queue: "Queue",
  upstream_prefill: "Prefill",
  other: "Other",
};

const OUTCOMES = {
  exact: "The same request had been answered before.",
  semantic: "Another question that means the same had been answered before.",
  joined: "The same request was being answered at that moment; this one got a copy.",
  stale: "A stored answer past its life was served, as the policy allows.",
  miss: "No stored answer could be used; the backend was asked.",
  bypass: "No cache may answer this request; the backend was asked.",
};

const plain = (code) => String(code).replaceAll("_", " ");

export const reason = (code) => (code ? (Object.hasOwn(REASONS, code) ? REASONS[code] : plain(code)) : "");
export const phase = (name) => (Object.hasOwn(PHASES, name) ? PHASES[name] : plain(name));

/** A sentence on what became of a request. */
export function story(decision) {
  if (decision.why?.text) return decision.why.text;
  if (decision.error) return `It failed: ${plain(decision.error)}.`;
  return OUTCOMES[decision.outcome] ?? "It ended before any tier was asked.";
}

/** The same in few words, for a line of the list. */
export function shortly(decision) {
  if (decision.error) return plain(decision.error);
  const near = decision.tiers.find((t) => t.tier === "semantic");
  if (decision.outcome === "semantic")
    return near?.similarity ? `similarity ${near.similarity.toFixed(3)}` : "same meaning";
  if (decision.outcome === "exact" || decision.outcome === "stale")
    return decision.age === null ? "a stored answer" : `answer ${duration(decision.age)} old`;
  if (decision.outcome === "joined") return "copied from a call under way";
  const { code, differs = [] } = decision.why ?? {};
  if (code === "question" && near?.why)
    return `${reason(near.why)}${near.similarity ? ` (${near.similarity.toFixed(2)})` : ""}`;
  if (differs.length) return `differs: ${differs.join(", ")}`;
  return reason(code ?? decision.tiers.findLast((t) => t.why)?.why);
}
