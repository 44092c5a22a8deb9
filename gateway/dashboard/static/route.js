// Where the reader is, kept in the address: #/VIEW[/ID][?filters]. Everything can be linked to and reloaded.

export const VIEWS = ["overview", "requests", "entries"];
export const RANGES = ["15m", "1h", "6h", "24h", "7d", "30d", "all"];
const SHARED = ["endpoint", "tenant", "range"];

/** {view, id, query} of the address; anything strange is the overview. */
export function read() {
  const [path, search = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  const [view, id = ""] = path.split("/", 2);
  const query = Object.fromEntries(new URLSearchParams(search));
  if (!RANGES.includes(query.range)) delete query.range;
  return { view: VIEWS.includes(view) ? view : "overview", id: decode(id), query };
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return "";
  }
}

export function href(view, id = "", query = {}) {
  const kept = Object.entries(query).filter(([, v]) => v);
  return `#/${view}${id ? `/${encodeURIComponent(id)}` : ""}${kept.length ? `?${new URLSearchParams(kept)}` : ""}`;
}

/** The filters that go along from one view to another. */
export const shared = (query) => Object.fromEntries(SHARED.filter((n) => query[n]).map((n) => [n, query[n]]));

/** Open an address; it becomes a step of the history. */
export function go(view, id, query) {
  location.hash = href(view, id, query);
}

/** Back from what was open in a view, unless the address has already moved on: a dialog tells late that it was closed. */
export function back(view, id, query) {
  const now = read();
  if (now.view === view && now.id === id) go(view, "", query);
}

/** Change filters in place, without a step of the history. */
export function change(query) {
  const now = read();
  history.replaceState(null, "", href(now.view, now.id, { ...now.query, ...query }));
  window.dispatchEvent(new Event("hashchange"));
}
