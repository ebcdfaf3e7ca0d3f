// The question that the form asks: pods and nodes in the form of /v1/simulate. Pure.

/** The question, or the first field that makes no sense: { question } or { field, problem }. `values` are the form's texts. */
export function question(values, resources) {
  const resource = resources.find((each) => each.deviceType === values.deviceType);
  if (!resource) return { field: "deviceType", problem: "choose which devices are asked for" };
  const read = reader(values);
  const asked = {
    copies: read("copies", 1, 1000, "pods"),
    count: read("count", 1, 64, "cards"),
    memoryMib: read("memoryMib", 0, 2147483647, "MiB", true),
    cores: read("cores", 0, 100, "percent", true),
    nodes: read("nodes", 0, 1000, "nodes"),
    nodeCards: read("nodeCards", 1, 64, "cards"),
    nodeMemoryMib: read("nodeMemoryMib", 1, 2147483647, "MiB"),
  };
  if (read.failure) return read.failure;
  const namespace = values.namespace.trim();
  if (!/^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$/.test(namespace)) {
    return { field: "namespace", problem: "a namespace has small letters, digits and dashes, at most 63" };
  }
  if (asked.memoryMib && !resource.memory) return { field: "memoryMib", problem: `${values.deviceType} is not asked for by memory` };
  if (asked.cores && !resource.cores) return { field: "cores", problem: `${values.deviceType} is not asked for by cores` };
  if (values.onlyAdded && !asked.nodes) return { field: "nodes", problem: "say how many nodes are added, or look at those there are" };
  const limits = { [resource.count]: String(asked.count) };
  if (asked.memoryMib) limits[resource.memory] = String(Math.ceil(asked.memoryMib / resource.memoryUnitMib));
  if (asked.cores) limits[resource.cores] = String(asked.cores);
  const pod = { metadata: { name: "asked", namespace }, spec: { containers: [{ name: "main", resources: { limits } }] } };
  const built = { pods: [pod], copies: asked.copies };
  if (asked.nodes) {
    built.profiles = [
      {
        name: "added",
        vendor: values.deviceType,
        nodes: asked.nodes,
        count: asked.nodeCards,
        device: { memory_mib: asked.nodeMemoryMib, model: "added", cores: 100 },
      },
    ];
    built.onlyAdded = Boolean(values.onlyAdded);
  }
  return { question: built };
}

function reader(values) {
  const read = (field, least, most, unit, optional = false) => {
    const text = (values[field] ?? "").trim();
    if (optional && text === "") return 0;
    const number = Number(text);
    if (text !== "" && Number.isInteger(number) && number >= least && number <= most) return number;
    read.failure ??= { field, problem: `${text === "" ? "nothing" : text} is not accepted; accepted: ${least} to ${most} ${unit}` };
    return 0;
  };
  read.failure = undefined;
  return read;
}
