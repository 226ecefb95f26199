// Sends the rows in a form to its model and shows the answer.
for (const form of document.querySelectorAll("form")) {
  const output = form.querySelector("output");
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const address = new URL(form.getAttribute("action"), location.href);
    for (const field of form.querySelectorAll("input[name]")) {
      const value = field.type === "checkbox" ? (field.checked ? "true" : "") : field.value.trim();
      if (value) address.searchParams.set(field.name, value);
    }
    const body = form.querySelector("textarea").value;
    const kind = /^\s*[[{]/.test(body) ? "application/json" : "text/csv";
    output.textContent = "…";
    output.className = "";
    try {
      const response = await fetch(address, { method: "POST", headers: { "Content-Type": kind }, body });
      const text = await response.text();
      const isJson = (response.headers.get("Content-Type") || "").startsWith("application/json");
      output.className = response.ok ? "" : "fault";
      output.textContent = isJson ? JSON.stringify(JSON.parse(text), null, 2) : text;
    } catch (error) {
      output.className = "fault";
      output.textContent = "The server did not answer.";
    }
  });
}
