// Server-sent events. Each connection starts with the whole view. If the browser stops reconnecting, this does.

export function followEvents({ onView, onUpdate, onHealth, onTrouble, onLost, onAlive }) {
  let source = null;
  let retry = 0;
  let timer = 0;

  function open() {
    source?.close();
    source = new EventSource("live/events");
    source.addEventListener("open", () => { retry = 0; onAlive(); });
    source.addEventListener("view", (event) => onView(JSON.parse(event.data)));
    source.addEventListener("update", (event) => {
      if (!onUpdate(JSON.parse(event.data))) open();  // an update is missing: start again with a view
    });
    source.addEventListener("health", (event) => onHealth(JSON.parse(event.data)));
    source.addEventListener("trouble", (event) => onTrouble(JSON.parse(event.data).detail));
    source.addEventListener("error", () => {
      onLost();
      if (source.readyState === EventSource.CLOSED) {
        clearTimeout(timer);
        retry = Math.min(10, retry + 1);
        timer = setTimeout(open, 400 * retry);
      }
    });
  }
  open();
  return () => { clearTimeout(timer); source?.close(); };
}
