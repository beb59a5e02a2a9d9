// The episode of tests/support/client_fixtures.py, played by the `openai` package for Node. argv: dialect, whole|streaming,
// the tool and the opening as JSON; prints {answer, usage, pieces, around} as JSON. Endpoint and key are in the environment.
import OpenAI from "openai";

const [dialect, way, toolText, system, question] = process.argv.slice(2);
const streaming = way === "streaming";
const tool = JSON.parse(toolText);
const client = new OpenAI();
const model = "gpt-4o";
const usage = [];
const around = [];
let pieces = [];

const add = (text) => {
  const { a, b } = JSON.parse(text);
  return String(a + b);
};

async function chat() {
  const messages = [
    { role: "system", content: system },
    { role: "user", content: question },
  ];
  for (;;) {
    const asked = { model, messages, tools: [tool] };
    pieces = [];
    let answer;
    if (streaming) {
      const stream = client.chat.completions.stream({ ...asked, stream_options: { include_usage: true } });
      stream.on("content", (delta) => pieces.push(delta));
      answer = await stream.finalChatCompletion();
    } else {
      answer = await client.chat.completions.create(asked);
    }
    usage.push([answer.usage.prompt_tokens, answer.usage.completion_tokens]);
    const said = answer.choices[0].message;
    messages.push(said);
    if (!said.tool_calls?.length) return said.content;
    for (const call of said.tool_calls) {
      messages.push({ role: "tool", tool_call_id: call.id, content: add(call.function.arguments) });
    }
  }
}

async function responses() {
  const tools = [{ type: "function", strict: false, ...tool.function }];
  let asked = { input: question };
  for (;;) {
    const full = { model, instructions: system, tools, ...asked };
    pieces = [];
    let answer;
    if (streaming) {
      const stream = client.responses.stream(full);
      stream.on("response.output_text.delta", (event) => pieces.push(event.delta));
      answer = await stream.finalResponse();
    } else {
      answer = await client.responses.create(full);
    }
    usage.push([answer.usage.input_tokens, answer.usage.output_tokens]);
    const calls = answer.output.filter((item) => item.type === "function_call");
    if (!calls.length) return answer.output_text;
    const input = calls.map((call) => ({
      type: "function_call_output",
      call_id: call.call_id,
      output: add(call.arguments),
    }));
    asked = { input, previous_response_id: answer.id };
  }
}

async function completions() {
  const end = "<|im_end|>";
  let prompt = `<|im_start|>user\n${question}${end}\n<|im_start|>assistant\n`;
  around.push(prompt);
  for (;;) {
    const asked = { model: "gpt-3.5-turbo-instruct", prompt, max_tokens: 500 };
    pieces = [];
    if (streaming) {
      const stream = await client.completions.create({
        ...asked,
        stream: true,
        stream_options: { include_usage: true },
      });
      for await (const chunk of stream) {
        for (const choice of chunk.choices) if (choice.text) pieces.push(choice.text);
        if (chunk.usage) usage.push([chunk.usage.prompt_tokens, chunk.usage.completion_tokens]);
      }
    } else {
      const answer = await client.completions.create(asked);
      pieces.push(answer.choices[0].text);
      usage.push([answer.usage.prompt_tokens, answer.usage.completion_tokens]);
    }
    const said = pieces.join("");
    const call = said.match(/<tool_call>([^]*)<\/tool_call>/);
    if (!call) return said;
    const result = add(JSON.stringify(JSON.parse(call[1]).arguments));
    const after = `\n<|im_start|>tool\n${result}${end}\n<|im_start|>assistant\n`;
    around.push(after);
    prompt += said + end + after;
  }
}

const answer = await { chat, responses, completions }[dialect]();
console.log(JSON.stringify({ answer, usage, pieces: streaming ? pieces : null, around: around.length ? around : null }));
