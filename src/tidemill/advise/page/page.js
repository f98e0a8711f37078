// A button to copy each command. Without it a click on a command selects all of it.
for (const code of document.querySelectorAll("figure > pre")) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "button copy";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  code.before(button);
}
