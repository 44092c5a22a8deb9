// The stream of server-sent events, kept open: it comes back by itself, later and later while the gateway is away.

import { livePath, session } from "./api.js";

const SLOWEST = 15_000; // ms between two tries
const SILENCE = 60_000; // ms without an event after which it is opened anew: it may be dead, and time has moved on

/** Fires `overview` and `decisions` with the data as detail, and `state` with live, connecting, reconnecting or off. */
export class Live extends EventTarget {
  #source = null;
  #query = null;
  #path = "";
  #tries = 0;
  #timer = 0;
  #watch = 0;
  state = "off";

  constructor() {
    super();
    // Nobody looks at a hidden page: let the gateway rest.
    document.addEventListener("visibilitychange", () => {
      if (this.#query === null) return;
      if (document.hidden) this.#drop();
      else if (this.#source === null) this.#connect();
    });
    window.addEventListener("online", () => this.#query !== null && this.state !== "live" && this.#connect());
  }

  /** Listen with these filters. A stream with the same ones is kept; true: there is a new one. */
  open(query) {
    const path = livePath(query);
    if (this.#query !== null && path === this.#path) return false;
    this.#query = query;
    this.#path = path;
    this.#tries = 0;
    this.#connect();
    return true;
  }

  close() {
    this.#query = null;
    this.#drop();
    this.#say("off");
  }

  #drop() {
    clearTimeout(this.#timer);
    clearTimeout(this.#watch);
    this.#source?.close();
    this.#source = null;
  }

  #connect(quietly = false) {
    this.#drop();
    if (!quietly) this.#say(this.#tries ? "reconnecting" : "connecting");
    const source = (this.#source = new EventSource(this.#path));
    const alive = () => {
      clearTimeout(this.#watch);
      this.#watch = setTimeout(() => this.#connect(true), SILENCE);
      this.#tries = 0;
      this.#say("live");
    };
    for (const name of ["overview", "decisions"]) {
      source.addEventListener(name, (event) => {
        if (source !== this.#source) return;
        alive();
        this.dispatchEvent(new CustomEvent(name, { detail: JSON.parse(event.data) }));
      });
    }
    source.onopen = alive;
    source.onerror = () => source === this.#source && this.#lost();
  }

  async #lost() {
    this.#drop();
    this.#say("reconnecting");
    const wait = Math.min(SLOWEST, 500 * 2 ** this.#tries++);
    this.#timer = setTimeout(() => this.#connect(), wait);
    try {
      // An event source does not say why it ended: a session that is over is found out here.
      const now = await session();
      if (now.required && !now.signed_in) window.dispatchEvent(new Event("signed-out"));
    } catch {
      // Not there at all; the timer tries again.
    }
  }

  #say(state) {
    if (this.state === state) return;
    this.state = state;
    this.dispatchEvent(new CustomEvent("state", { detail: state }));
  }
}
