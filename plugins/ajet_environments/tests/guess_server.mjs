// An environment service without ajet and without packages: guess a number from 0 to 9.
import { createServer } from "node:http";

const tasks = { train: ["3", "7", "12"], validation: ["25"] };
const instances = new Map();

const state = (content) => [{ role: "user", content }];
const failure = (status, detail) => Object.assign(new Error(detail), { status });

function instanceOf({ instance_id }) {
  const instance = instances.get(instance_id);
  if (!instance) throw failure(404, `no instance ${instance_id}`);
  return instance;
}

const requests = {
  get_env_profile: ({ params }) => tasks[params.split] ?? [],
  create: ({ instance_id, task_id }) => {
    if (!/^\d+$/.test(task_id)) throw failure(400, `no task ${task_id}`);
    instances.set(instance_id, { number: Number(task_id) % 10, score: 0 });
    return { state: state("Guess my number, from 0 to 9."), reward: 0, is_terminated: false, info: {} };
  },
  step: (body) => {
    const instance = instanceOf(body);
    const right = String(body.messages.content).includes(String(instance.number));
    instance.score = right ? 1 : 0;
    return { state: state(right ? "right" : "wrong"), reward: instance.score, is_terminated: right, info: {} };
  },
  evaluate: (body) => instanceOf(body).score,
  get_info: () => ({ rules: "one digit" }),
  release: ({ instance_id }) => instances.delete(instance_id),
};

async function read(request) {
  const parts = [];
  for await (const part of request) parts.push(part);
  return JSON.parse(Buffer.concat(parts).toString("utf8"));
}

const server = createServer(async (request, response) => {
  const name = request.url.split("/").pop();
  let status = 200;
  let answer = { success: true, data: null };
  try {
    if (name !== "healthz") {
      if (!(name in requests)) throw failure(404, `no request ${name}`);
      answer = { success: true, data: requests[name](await read(request)) };
    }
  } catch (problem) {
    status = problem.status ?? 500;
    answer = { success: false, detail: problem.message };
  }
  response.writeHead(status, { "Content-Type": "application/json" });
  response.end(JSON.stringify(answer));
});
server.listen(0, "127.0.0.1", () => console.log(`listening on ${server.address().port}`));
