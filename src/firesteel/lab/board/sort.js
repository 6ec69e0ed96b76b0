// Makes tables sortable: by their headings, or on a narrow screen, which has none, by a list.
for (const table of document.querySelectorAll("table")) {
  const head = table.tHead?.rows[0], body = table.tBodies[0];
  if (!head || head.cells.length < 4 || body.rows.length < 2) continue;
  const given = [...body.rows], headings = [...head.cells];
  const text = (row, column) => {  // without icons and notes
    const cell = row.cells[column].cloneNode(true);
    cell.querySelectorAll("[aria-hidden], small").forEach((part) => part.remove());
    return cell.textContent.trim();
  };
  const number = (words) => {
    const match = /^\d{4}-\d\d/.test(words) ? null : words.replaceAll(",", "").match(/^[-−+]?\d+(\.\d+)?/);
    return match && parseFloat(match[0].replace("−", "-"));
  };
  const compare = (a, b) => {
    const x = number(a), y = number(b);
    return x !== null && y !== null && x !== y ? x - y : a.localeCompare(b);
  };
  const sort = (column, direction) => {
    const empty = given.filter((row) => !text(row, column));
    const rows = given.filter((row) => text(row, column));
    rows.sort((a, b) => direction * compare(text(a, column), text(b, column)));
    body.append(...rows, ...empty);
    headings.forEach((heading) => heading.removeAttribute("aria-sort"));
    headings[column].setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
  };
  const choice = document.createElement("select");
  headings.forEach((heading, column) => {
    const isSpeed = /tok\/s|roof/.test(heading.textContent);
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const before = heading.getAttribute("aria-sort");
      sort(column, before ? (before === "ascending" ? -1 : 1) : isSpeed ? -1 : 1);
    });
    choice.add(new Option(button.textContent, column));
  });
  choice.addEventListener("change", () => headings[choice.value].firstChild.click());
  const label = document.createElement("label");
  label.className = "sort";
  label.append("sorted by ", choice);
  table.parentElement.before(label);
}
