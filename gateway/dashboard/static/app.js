// The frame: who is signed in, which view is open, the stream that all views live from, and the theme.

import * as api from "./api.js";
import { toast } from "./dialogs.js";
import { entriesView } from "./entries.js";
import { Live } from "./live.js";
import { DEFAULT_RANGE, overviewView } from "./overview.js";
import { requestsView } from "./requests.js";
import { href, read, shared, VIEWS } from "./route.js";
import { signInView } from "./signin.js";
import { button, h, iconButton, sayAll, state } from "./ui.js";

const MAKE = { overview: overviewView, requests: requestsView, entries: entriesView };
const TITLES = { overview: "Overview", requests: "Requests", entries: "Entries" };
const LIVE = {
  live: ["Live", "good"],
  connecting: ["Connecting", "idle"],
  reconnecting: ["Reconnecting", "warn"],
  off: ["Signed out", "idle"],
};

const main = document.getElementById("main");
const nav = document.getElementById("nav");
const tools = document.getElementById("tools");
const live = new Live();
const liveState = h("span", { class: "live-slot", role: "status", test: "live-state" });
let signedIn = false;
let view = null;
let viewName = "";
let latest = null;

function showLive() {
  const [word, tone] = LIVE[live.state];
  sayAll(liveState, live.state, () => {
    const made = state(word, tone);
    made.classList.add("live");
    return made;
  });
  liveState.dataset.state = live.state;
}

let broken = false; // has the stream left out what the view has to catch up with?

function navigate() {
  if (!signedIn) return;
  const at = read();
  for (const link of nav.children) {
    const name = link.dataset.view;
    link.href = href(name, "", shared(at.query));
    if (name === at.view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const { endpoint, tenant, range = DEFAULT_RANGE } = at.query;
  // Only the list wants to hear of every request.
  if (live.open({ range, endpoint, tenant, decisions: at.view === "requests" ? "" : "no" })) broken = true;
  if (viewName !== at.view) {
    view?.leave();
    view = MAKE[at.view]();
    main.replaceChildren(view.el);
    document.title = `${TITLES[at.view]} · Refrain`;
    if (viewName) main.focus({ preventScroll: true });
    viewName = at.view;
    window.scrollTo(0, 0);
  }
  view.route(at);
  if (latest) view.update(latest);
}

live.addEventListener("overview", ({ detail }) => {
  latest = detail;
  view?.update(detail);
});
live.addEventListener("decisions", ({ detail }) => view?.arrive?.(detail.decisions));
live.addEventListener("state", ({ detail }) => {
  showLive();
  if (detail === "reconnecting") broken = true;
  if (detail === "live" && broken) {
    broken = false;
    view?.catchUp?.();
  }
});

function showSignIn(remark) {
  signedIn = false;
  live.close();
  view?.leave();
  [view, viewName, latest] = [null, "", null];
  frame(null);
  const form = signInView(start, remark);
  main.replaceChildren(form.el);
  document.title = "Sign in · Refrain";
  form.focus();
}

/** The head of the page, for who is signed in. */
function frame(session) {
  nav.hidden = !session;
  nav.replaceChildren(
    ...(session
      ? VIEWS.map((name) => h("a", { href: href(name), test: `nav-${name}`, "data-view": name }, TITLES[name]))
      : []),
  );
  const who =
    session?.required &&
    h("span", { class: "who note", title: session.role }, [session.tenant, session.user].filter(Boolean).join(" / "));
  const leave = session?.required && iconButton("out", "Sign out", signOut, "sign-out");
  tools.replaceChildren(...[session && liveState, who, themeToggle(), leave].filter(Boolean));
}

async function signOut() {
  try {
    await api.signOut();
    showSignIn("You are signed out.");
  } catch (error) {
    toast(error.message, "bad");
  }
}

const systemDark = matchMedia("(prefers-color-scheme: dark)");
systemDark.addEventListener("change", () => {
  document.querySelector("[data-test=theme-toggle]")?.replaceWith(themeToggle());
});

function themeToggle() {
  const root = document.documentElement;
  const dark = () => (root.dataset.theme ?? (systemDark.matches ? "dark" : "light")) === "dark";
  const make = () => iconButton(dark() ? "sun" : "moon", dark() ? "Light theme" : "Dark theme", flip, "theme-toggle");
  function flip(event) {
    root.dataset.theme = dark() ? "light" : "dark";
    try {
      localStorage.setItem("refrain-theme", root.dataset.theme);
    } catch {
      // It holds until the page is left.
    }
    const next = make();
    event.currentTarget.replaceWith(next);
    next.focus();
    window.dispatchEvent(new Event("theme"));
  }
  return make();
}

async function start() {
  try {
    const session = await api.session();
    if (session.required && !session.signed_in) return showSignIn();
    signedIn = true;
    frame(session);
    showLive();
    navigate();
  } catch (error) {
    const again = button("Try again", { kind: "primary", onclick: start });
    main.replaceChildren(
      h(
        "div",
        { class: "page centered" },
        h(
          "div",
          { class: "panel signin" },
          h("h1", {}, "No dashboard now"),
          h("p", { class: "problem" }, error.message),
          again,
        ),
      ),
    );
  }
}

window.addEventListener("hashchange", navigate);
window.addEventListener("signed-out", () => signedIn && showSignIn("The session has ended. Sign in again."));
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address belongs to the views
  main.focus();
});
start();
