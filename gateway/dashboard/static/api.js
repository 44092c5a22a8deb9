// Calls of the admin API. A failure is an ApiError whose message may be shown as it is.

export class ApiError extends Error {
  constructor(status, message, code = "") {
    super(message);
    this.status = status;
    this.code = code;
  }
}

async function call(method, path, body) {
  const init = { method, credentials: "same-origin", headers: { accept: "application/json" } };
  if (body !== undefined) {
    init.body = JSON.stringify(body);
    init.headers["content-type"] = "application/json";
  }
  let response;
  try {
    response = await fetch(path, init);
  } catch {
    throw new ApiError(0, "The gateway cannot be reached.");
  }
  const text = await response.text();
  let data = null;
  try {
    data = text ? JSON.parse(text) : null;
  } catch {
    if (response.ok) throw new ApiError(response.status, "The gateway sent something that is no JSON.");
  }
  if (response.ok) return data;
  const error = new ApiError(
    response.status,
    data?.error?.message ?? `The gateway answered ${response.status}.`,
    data?.error?.code,
  );
  if (response.status === 401) window.dispatchEvent(new Event("signed-out"));
  throw error;
}

const query = (values) => {
  const kept = Object.entries(values).filter(([, v]) => v !== undefined && v !== null && v !== "");
  return kept.length ? `?${new URLSearchParams(kept)}` : "";
};

export const session = () => call("GET", "/dashboard/session");
export const signIn = (key) => call("POST", "/dashboard/session", { key });
export const signOut = () => call("DELETE", "/dashboard/session");
export const overview = (filters) => call("GET", `/admin/overview${query(filters)}`);
export const decisions = (filters) => call("GET", `/admin/decisions${query(filters)}`);
export const decision = (id) => call("GET", `/admin/decisions${query({ id })}`);
export const entries = (filters) => call("GET", `/admin/entries${query(filters)}`);
export const purge = (criteria) => call("POST", "/admin/purge", criteria);
export const feedback = (request_id, correct) => call("POST", "/admin/feedback", { request_id, correct });
export const livePath = (filters) => `/admin/live${query(filters)}`;
