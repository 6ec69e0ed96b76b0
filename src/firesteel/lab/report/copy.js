// Adds a button that copies the command; without scripts the command can be selected.
for (const field of document.querySelectorAll(".files textarea")) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", () => {
    field.select();
    button.textContent = document.execCommand("copy") ? "Copied" : "Selected: press Ctrl+C";
  });
  field.parentElement.after(button);
}
