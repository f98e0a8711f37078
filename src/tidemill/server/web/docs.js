// Shows the OpenAPI description: what can be asked for, the fields of each body, how it can end.

const make = (tag, text = "", className = "") => {
  const node = document.createElement(tag);
  if (text) node.textContent = text;
  if (className) node.className = className;
  return node;
};

const nameOf = (schema) => (schema.$ref ?? "").split("/").pop();

// A type in a few words, such as "integer or null" or "list of string".
function typeOf(schema, schemas) {
  if (schema.$ref) return typeOf(schemas[nameOf(schema)] ?? {}, schemas) || nameOf(schema);
  if (schema.anyOf) return schema.anyOf.map((one) => typeOf(one, schemas)).join(" or ");
  if (schema.enum) return schema.enum.map((one) => JSON.stringify(one)).join(", ");
  if (schema.type === "array") return `list of ${typeOf(schema.items ?? {}, schemas)}`;
  return schema.type ?? "anything";
}

function table(headings, rows) {
  const element = make("table");
  const head = element.createTHead().insertRow();
  for (const heading of headings) {
    const cell = make("th", heading);
    cell.scope = "col";
    head.append(cell);
  }
  const body = element.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    row.forEach((text, i) => line.insertCell().append(i ? text : make("code", text)));
  }
  return element;
}

// What is required comes first.
function fields(schema, schemas) {
  const required = new Set(schema.required ?? []);
  const rows = Object.entries(schema.properties ?? {}).map(([name, one]) => [
    name,
    typeOf(one, schemas),
    required.has(name) ? "required" : "default" in one ? JSON.stringify(one.default) : "",
  ]);
  return [...rows.filter(([name]) => required.has(name)), ...rows.filter(([name]) => !required.has(name))];
}

// A paragraph in which ``names`` are code.
function prose(text) {
  const paragraph = make("p");
  text.split("``").forEach((part, i) => paragraph.append(i % 2 ? make("code", part) : part));
  return paragraph;
}

function operation(method, path, about, schemas) {
  const details = make("details");
  const summary = make("summary");
  summary.append(make("span", method.toUpperCase(), "method"), make("code", path), " ");
  summary.append(make("span", about.summary, "what"));
  const body = make("div", "", "body");
  body.tabIndex = 0; // wide tables are scrolled, by keyboard too
  body.setAttribute("role", "region");
  body.setAttribute("aria-label", `${method.toUpperCase()} ${path}`);
  const content = about.requestBody?.content["application/json"].schema;
  if (content) {
    const schema = schemas[nameOf(content)] ?? content;
    if (schema.description) body.append(prose(schema.description));
    body.append(table(["Field", "Type", "Default"], fields(schema, schemas)));
  }
  body.append(make("h3", "Answers"));
  const answers = Object.entries(about.responses).map(([code, one]) => [code, one.description]);
  body.append(table(["Status", "When"], answers));
  details.append(summary, body);
  return details;
}

async function show() {
  const about = document.getElementById("about");
  const place = document.getElementById("operations");
  try {
    const answer = await fetch("openapi.json");
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const description = await answer.json();
    about.textContent = `${description.info.description} Version ${description.info.version}.`;
    const groups = new Map();
    for (const [path, methods] of Object.entries(description.paths)) {
      for (const [method, one] of Object.entries(methods)) {
        const group = one.tags[0];
        if (!groups.has(group)) groups.set(group, []);
        groups.get(group).push(operation(method, path, one, description.components.schemas));
      }
    }
    for (const [group, found] of groups) place.append(make("h2", group), ...found);
  } catch (error) {
    about.textContent = `The description could not be read: ${error.message}`;
    about.setAttribute("role", "alert");
  }
}

show();
