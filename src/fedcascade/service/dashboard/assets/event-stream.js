// Server-sent events of the server: the browser reconnects by itself, and where it gives up, this does.

export function followEvents({ onView, onUpdate, onHealth, onTrouble, onLost, onAlive }) {
  let source = null;
  let lastId = "";
  let retry = 0;
  let timer = 0;

  function open() {
    source?.close();
    source = new EventSource(`/live/events${lastId ? `?after=${encodeURIComponent(lastId)}` : ""}`);
    source.addEventListener("open", () => { retry = 0; onAlive(); });
    source.addEventListener("view", (event) => {
      lastId = event.lastEventId;
      onView(JSON.parse(event.data));
    });
    source.addEventListener("update", (event) => {
      if (onUpdate(JSON.parse(event.data))) {
        lastId = event.lastEventId;
      } else {  // something is missing in between: ask for everything
        lastId = "";
        open();
      }
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
