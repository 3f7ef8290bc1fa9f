/* Search in pages opened from the disk, where browsers start no worker: a hidden frame of the page runs the theme's instead.
   The theme's `offline` plugin would fetch such a stand-in from elsewhere; it does not where a script of this name is there. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = Object.assign(document.createElement("iframe"), { hidden: true });
      this.inside = new Promise((resolve, reject) => {
        frame.onload = () => {
          const inside = frame.contentWindow;
          inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          const script = inside.document.createElement("script");
          script.src = address;
          script.onload = () => resolve(inside);
          script.onerror = () => reject(new Error(`search: ${address} cannot be read`));
          inside.document.head.append(script);
        };
      });
      document.body.append(frame);
    }

    async postMessage(data) {
      (await this.inside).dispatchEvent(new MessageEvent("message", { data }));
    }
  };
}
