// Server-sent events that survive anything: the browser reconnects by itself, and where it gives up, we do.

export function follow({ onPicture, onFrame, onHealth, onTrouble, onLost, onAlive }) {
  let source = null;
  let mark = "";
  let retry = 0;
  let silent = 0;

  function open() {
    source?.close();
    source = new EventSource(`/live/events${mark ? `?after=${encodeURIComponent(mark)}` : ""}`);
    source.addEventListener("open", () => { retry = 0; onAlive(); });
    source.addEventListener("picture", (event) => {
      mark = event.lastEventId;
      onPicture(JSON.parse(event.data));
    });
    source.addEventListener("frame", (event) => {
      if (onFrame(JSON.parse(event.data))) {
        mark = event.lastEventId;
      } else {  // something is missing in between: ask for everything
        mark = "";
        open();
      }
    });
    source.addEventListener("health", (event) => onHealth(JSON.parse(event.data)));
    source.addEventListener("trouble", (event) => onTrouble(JSON.parse(event.data).detail));
    source.addEventListener("error", () => {
      onLost();
      if (source.readyState === EventSource.CLOSED) {
        clearTimeout(silent);
        retry = Math.min(10, retry + 1);
        silent = setTimeout(open, 400 * retry);
      }
    });
  }
  open();
  return () => { clearTimeout(silent); source?.close(); };
}
