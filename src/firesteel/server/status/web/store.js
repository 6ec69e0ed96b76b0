"use strict";
// The conversation in this browser's storage, so that it survives a reload. The API key is not part of it.

const STORE_KEY = "firesteel.chat", STORE_VERSION = 1;

// Returns the conversation, or null if there is none; throws if it cannot be read.
function loadChat() {
  const text = localStorage.getItem(STORE_KEY);
  if (text === null) return null;
  const chat = JSON.parse(text);
  if (chat?.version !== STORE_VERSION || !Array.isArray(chat.turns) || !chat.turns.every(isTurn))
    throw new Error("it was not written by this version of the page");
  return chat;
}

function saveChat(chat) {
  localStorage.setItem(STORE_KEY, JSON.stringify({...chat, version: STORE_VERSION}));
}

function forgetChat() {
  localStorage.removeItem(STORE_KEY);
}

function isTurn(turn) {
  const areTexts = (object, names) => names.every(name => typeof object?.[name] === "string");
  if (!areTexts(turn, ["role", "content"])) return false;
  if (turn.role === "user") return true;
  if (turn.role === "tool") return areTexts(turn, ["id", "name"]);
  return turn.role === "assistant" && areTexts(turn, ["reasoning", "figures", "error"]) && Array.isArray(turn.calls)
    && turn.calls.every(call => areTexts(call, ["id", "name", "arguments"]));
}

// Returns the messages that the server is asked to answer.
function messagesOf(turns, instructions) {
  const messages = instructions ? [{role: "system", content: instructions}] : [];
  const question = turns.findLastIndex(turn => turn.role === "user");
  turns.forEach((turn, place) => {
    if (turn.role === "user") messages.push({role: "user", content: turn.content});
    else if (turn.role === "tool") messages.push({role: "tool", tool_call_id: turn.id, content: turn.content});
    else if (turn.content || callsOf(turn).length) messages.push(assistantMessage(turn, place > question));
    else if (messages.at(-1)?.role === "user") messages.pop();  // a question that failed is not asked again
  });
  return messages;
}

// Returns the calls of an answer that came to its end; the arguments of others may be incomplete.
function callsOf(turn) {
  return turn.isCut ? [] : turn.calls;
}

// The model reads its reasoning again only until it has answered: between calls of functions.
function assistantMessage(turn, isCurrent) {
  const message = {role: "assistant", content: turn.content};
  if (!callsOf(turn).length) return message;
  if (isCurrent && turn.reasoning) message.reasoning_content = turn.reasoning;
  message.tool_calls = turn.calls.map(call =>
    ({id: call.id, type: "function", function: {name: call.name, arguments: call.arguments}}));
  return message;
}

// Returns the tools of a text that a user pasted, or undefined for an empty one.
function readTools(text) {
  if (!text.trim()) return undefined;
  let tools;
  try {
    tools = JSON.parse(text);
  } catch (error) {
    throw new Error(`the tools are not JSON: ${error.message}`);
  }
  if (!Array.isArray(tools) || !tools.length)
    throw new Error('the tools must be a JSON list such as [{"type": "function", "function": {"name": "f"}}]');
  return tools;
}
