// One answer being generated: fills a message as its words come, and measures how fast they do.

import * as api from "./api.js";
import { say } from "./dom.js";

const SPOKEN_MS = 4000; // an answer is read out in whole sentences, at most this often
const SAVED_MS = 2000;

export class Answer {
  /** `body` is the request. `onChange()` at most once a frame, `onSave()` now and then. */
  constructor(message, body, { onChange, onSave }) {
    this.message = message;
    this.body = body;
    this.onChange = onChange;
    this.onSave = onSave;
    this.control = new AbortController();
    this.spoken = 0;
  }

  stop() {
    this.control.abort();
  }

  /** Until the answer is over, however it ends; the message says how. Returns the ApiError, if any. */
  async run() {
    const { message } = this;
    const began = performance.now();
    let first = null;
    let last = began;
    let pieces = 0;
    let failure = null;
    say("Answering");
    const timers = [setInterval(() => this.speak(false), SPOKEN_MS), setInterval(this.onSave, SAVED_MS)];
    try {
      for await (const part of api.chat(this.body, this.control.signal)) {
        if (part.text !== undefined || part.reasoning !== undefined) {
          last = performance.now();
          first ??= last;
          pieces++;
          message.content += part.text ?? "";
          message.reasoning = (message.reasoning ?? "") + (part.reasoning ?? "");
          this.changed();
        }
        if (part.finish) message.finish = part.finish;
        if (part.usage) message.stats = { tokens: part.usage.completion_tokens, exact: true };
      }
    } catch (error) {
      if (error.name === "AbortError") message.finish = "stopped";
      else {
        failure = error instanceof api.ApiError ? error : new api.ApiError("The connection broke off.");
        message.error = failure.retryAfter
          ? `${failure.message} (try again in ${failure.retryAfter} s)`
          : failure.message;
      }
    } finally {
      timers.forEach(clearInterval);
      cancelAnimationFrame(this.frame);
    }
    const stats = (message.stats ??= { tokens: pieces, exact: false });
    if (first !== null) {
      stats.ttft = (first - began) / 1000;
      if (stats.tokens > 1 && last > first) stats.rate = ((stats.tokens - 1) * 1000) / (last - first);
    }
    if (!failure) this.speak(true);
    return failure;
  }

  changed() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      this.onChange();
    });
  }

  /** Read out what has come since, up to the end of a sentence unless it is `all`. */
  speak(all) {
    const text = this.message.content.slice(this.spoken);
    const end = all ? text.length : Math.max(...[".", "!", "?", "\n", ":"].map((mark) => text.lastIndexOf(mark))) + 1;
    if (end > 0) say(text.slice(0, end));
    else if (all) say(this.message.finish === "stopped" ? "Stopped" : "The answer is complete");
    this.spoken += end;
  }
}
