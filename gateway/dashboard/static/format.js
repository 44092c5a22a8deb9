// Numbers as people read them. Money is USD, times are milliseconds or seconds since 1970.

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en-US", { notation: "compact", maximumSignificantDigits: 3 });
const clockTime = new Intl.DateTimeFormat(undefined, {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hourCycle: "h23",
});
const dayOnly = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" });
const dayTime = new Intl.DateTimeFormat(undefined, {
  year: "numeric",
  month: "short",
  day: "numeric",
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hourCycle: "h23",
});
export const NONE = "–";

const there = (n) => typeof n === "number" && Number.isFinite(n);

/** 1,234 */
export const count = (n) => (there(n) ? whole.format(n) : NONE);

/** 1.23M, from `from` on; before that every digit. */
export const compact = (n, from = 10_000) =>
  there(n) ? (Math.abs(n) < from ? whole.format(n) : short.format(n)) : NONE;

/** Three digits that say something, whatever the size: $1,234, $12.34, $0.0031. */
export function usd(n) {
  if (!there(n)) return NONE;
  const size = Math.abs(n);
  const sign = n < 0 ? "-" : "";
  if (size === 0) return "$0.00";
  if (size >= 1000) return `${sign}$${whole.format(size)}`;
  if (size >= 0.1) return `${sign}$${size.toFixed(2)}`;
  if (size < 0.000001) return `< ${sign}$0.000001`;
  return `${sign}$${size.toFixed(Math.min(7, 1 - Math.floor(Math.log10(size))))}`;
}

/** All digits, for the ledger: $12.345678 */
export const usdExact = (n) =>
  there(n)
    ? `${n < 0 ? "-" : ""}$${Math.abs(n).toLocaleString("en-US", { minimumFractionDigits: 4, maximumFractionDigits: 4 })}`
    : NONE;

/** How long a request took: 0.4 ms, 12 ms, 1.24 s */
export function ms(n) {
  if (!there(n)) return NONE;
  if (n < 10) return `${n.toFixed(n < 1 ? 2 : 1)} ms`;
  if (n < 1000) return `${Math.round(n)} ms`;
  if (n < 60_000) return `${(n / 1000).toFixed(n < 10_000 ? 2 : 1)} s`;
  return duration(n / 1000);
}

const UNITS = [
  ["d", 86_400],
  ["h", 3600],
  ["min", 60],
  ["s", 1],
];

/** A stretch of time in seconds, in its two largest units: 3 h 12 min */
export function duration(seconds) {
  if (!there(seconds)) return NONE;
  if (seconds < 1) return seconds > 0 ? `${Math.round(seconds * 1000)} ms` : "0 s";
  if (seconds < 60) return `${seconds < 10 && !Number.isInteger(seconds) ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const at = UNITS.findIndex(([, size]) => seconds >= size);
  const [unit, size] = UNITS[at];
  const [below, part] = UNITS[at + 1];
  const first = Math.floor(seconds / size);
  const second = Math.floor((seconds - first * size) / part);
  return second ? `${first} ${unit} ${second} ${below}` : `${first} ${unit}`;
}

export function bytes(n) {
  if (!there(n)) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (n >= 1024 && at < units.length - 1) ((n /= 1024), at++);
  return `${at === 0 || n >= 100 ? Math.round(n) : n.toFixed(1)} ${units[at]}`;
}

/** A share of 1: 63.2 % */
export function percent(share, digits = 1) {
  if (!there(share)) return NONE;
  const value = share * 100;
  // Not 100 where something is missing, and not 0 where something is there.
  const limit = 10 ** -digits;
  if (value > 100 - limit && value < 100) return `> ${(100 - limit).toFixed(digits)} %`;
  if (value > 0 && value < limit) return `< ${limit} %`;
  return `${value === 0 || value === 100 ? value : value.toFixed(digits)} %`;
}

export const rate = (n) => (there(n) ? (n < 10 ? n.toFixed(1) : whole.format(n)) : NONE);
export const clock = (at) => (there(at) ? clockTime.format(at * 1000) : NONE);

/** The time of day, or the day where it is another one. */
export const brief = (at, now = Date.now() / 1000) => (now - at < 86_400 ? clock(at) : dayOnly.format(at * 1000));

export const moment = (at) => (there(at) ? dayTime.format(at * 1000) : NONE);

/** How long ago, or in how long: "3 min ago", "in 2 h" */
export function ago(at, now = Date.now() / 1000) {
  if (!there(at)) return NONE;
  const seconds = now - at;
  if (Math.abs(seconds) < 2) return "now";
  const gap = Math.abs(seconds);
  const [unit, size] = UNITS.find(([, u]) => gap >= u * 0.95);
  const largest = `${Math.round(gap / size)} ${unit}`;
  return seconds > 0 ? `${largest} ago` : `in ${largest}`;
}

/** A point of a time axis, as fine as its step (in seconds) needs. */
export function point(at, step) {
  const date = new Date(at * 1000);
  if (step >= 86_400) return date.toLocaleDateString(undefined, { weekday: "short", month: "short", day: "numeric" });
  const options = { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
  if (step < 60) options.second = "2-digit";
  return date.toLocaleString(undefined, options);
}
