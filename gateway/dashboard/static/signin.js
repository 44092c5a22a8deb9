// The sign-in form. The key goes to the gateway once; what stays is a cookie that no script can read.

import * as api from "./api.js";
import { button, h, say } from "./ui.js";

const BY_STATUS = {
  401: "This key is not known, or has been revoked.",
  403: "This key may not see the dashboard: it needs the role admin or tenant_admin.",
  429: "Too many tries. Wait a moment.",
};

/** `done` is called once signed in. */
export function signInView(done, remark = "") {
  const key = h("input", {
    id: "key",
    type: "password",
    autocomplete: "current-password",
    test: "signin-key",
    required: true,
    spellcheck: "false",
    "aria-describedby": "key-problem",
  });
  const problem = h("p", { id: "key-problem", class: "problem", role: "alert", hidden: true });
  const submit = button("Sign in", { kind: "primary", type: "submit", test: "signin-submit" });
  const form = h(
    "form",
    { class: "panel signin", novalidate: true, onsubmit: enter },
    h("input", { type: "text", autocomplete: "username", value: "refrain", hidden: true }),
    h("img", { src: "/dashboard/icon.svg", alt: "", width: "40", height: "40" }),
    h("h1", {}, "Sign in to Refrain"),
    h("p", { class: "note" }, remark || "With a gateway key that has the role admin or tenant_admin."),
    h("label", { class: "field", for: "key" }, h("span", {}, "Key"), key),
    problem,
    submit,
  );

  function fail(text) {
    problem.hidden = false;
    say(problem, text);
    key.setAttribute("aria-invalid", "true");
    key.focus();
    key.select();
  }

  async function enter(event) {
    event.preventDefault();
    if (!key.value.trim()) return fail("Enter a key first.");
    submit.disabled = true;
    try {
      await api.signIn(key.value.trim());
      key.value = "";
      await done();
    } catch (error) {
      fail(BY_STATUS[error.status] ?? error.message);
    } finally {
      submit.disabled = false;
    }
  }
  return { el: h("div", { class: "page centered" }, form), focus: () => key.focus() };
}
