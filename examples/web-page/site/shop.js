// Features of each product, in the order that the server was started for: --dimension 3.
const products = [["Tea", [0.9, 0.1, 0.2]], ["Coffee", [0.8, 0.3, 0.1]], ["Chess", [0.1, 0.9, 0.2]], ["Dice", [0.2, 0.8, 0.3]]];
const url = await (await fetch("server.txt")).text();
const { connect } = await import(`${url}/agent/index.js`);

// An agent that has enrolled before needs no token, and no network.
async function connectUser() {
  try {
    return await connect({ url });
  } catch {
    const reply = await fetch("agent-token", { method: "POST" });
    if (!reply.ok) throw new Error(`no token: status ${reply.status}`);
    return connect({ url, token: await reply.text() });
  }
}

function show() {
  const shown = agent.recommend(products.map(([, features]) => features), { k: 3 });
  document.getElementById("list").replaceChildren(...shown.items.map((item, clicked) => {
    const button = document.createElement("button"), line = document.createElement("li");
    button.textContent = products[item][0];
    button.addEventListener("click", () => agent.feedback(shown, { clicked }).then(show));
    line.append(button);
    return line;
  }));
  document.getElementById("note").textContent = agent.trouble ?? `Observations that have not been uploaded: ${agent.buffered}`;
}

const agent = await connectUser();
agent.addEventListener("change", () => document.body.setAttribute("data-sent", agent.state.confirmed.rounds));
show();
