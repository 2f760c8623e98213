// Lets the search work from a folder: browsers start no workers for pages of file:, so a hidden frame does the work instead.
// Messages are copied and arrive later, as those of a worker do.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.waiting = [];
      const begin = () => {
        const frame = document.body.appendChild(Object.assign(document.createElement("iframe"), { hidden: true }));
        const inside = frame.contentWindow;
        inside.postMessage = (data) => {
          const event = new MessageEvent("message", { data: structuredClone(data) });
          setTimeout(() => (this.dispatchEvent(event), this.onmessage?.(event)));
        };
        const script = frame.contentDocument.createElement("script");
        script.src = new URL(address, location.href).href;
        script.onload = () => {
          this.inside = inside;
          this.waiting.splice(0).forEach((data) => this.postMessage(data));
        };
        frame.contentDocument.body.append(script);
      };
      document.body ? begin() : addEventListener("DOMContentLoaded", begin);
    }
    postMessage(data) {
      if (!this.inside) return void this.waiting.push(data);
      const event = new this.inside.MessageEvent("message", { data: this.inside.structuredClone(data) });
      setTimeout(() => this.inside.dispatchEvent(event));
    }
    terminate() {}
  };
}
