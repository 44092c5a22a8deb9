// What a fresh gateway shows: how to send the first request, and that the second one comes from the cache.

import { copyable, h } from "./ui.js";

const OWN = "MODEL"; // where it is not known what the backend has

export function welcome() {
  const base = `${location.origin}/v1`;
  const shell = h("div", { class: "command" });
  const step = (n, title, ...rest) =>
    h("li", {}, h("b", { class: "step", "aria-hidden": "true" }, n), h("div", {}, h("h3", {}, title), rest));
  const el = h(
    "section",
    { class: "panel welcome", hidden: true, "aria-label": "First steps", test: "welcome" },
    h("h2", {}, "The gateway is ready. Nothing has come through it yet."),
    h("p", { class: "note" }, "Point an application at it, or send a request by hand; this page follows by itself."),
    h(
      "ol",
      {},
      step(
        "1",
        "Change one line of an application",
        h("div", { class: "command" }, copyable(`OPENAI_BASE_URL=${base}`, "the line")),
      ),
      step(
        "2",
        "Or ask from a shell",
        shell,
        h(
          "p",
          { class: "note" },
          "Any model that your backend has will do. Where keys are required, add -H 'authorization: Bearer …'.",
        ),
      ),
      step(
        "3",
        "Send the same request again",
        h(
          "p",
          { class: "note" },
          "The second one is answered from the cache: no tokens, no money, about a millisecond.",
        ),
      ),
    ),
  );
  let shown = false;

  function show() {
    el.hidden = false;
    if (shown) return;
    shown = true;
    ask(OWN);
    // Open only where no key is needed: then the command can name a model that is there.
    fetch(`${base}/models`)
      .then((r) => (r.ok ? r.json() : null))
      .then((found) => found?.data?.[0]?.id && ask(found.data[0].id))
      .catch(() => {});
  }

  function ask(model) {
    const body = JSON.stringify({ model, messages: [{ role: "user", content: "Say hello" }] }).replaceAll("'", "'\\''");
    shell.replaceChildren(
      copyable(`curl ${base}/chat/completions -H 'content-type: application/json' -d '${body}'`, "the command"),
    );
  }
  return { el, show, hide: () => (el.hidden = true) };
}
