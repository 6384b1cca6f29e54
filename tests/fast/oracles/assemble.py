"""The obvious way to put a whole response together: decode every event, add strings up, build a dict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tests.fast.oracles import grammar

MAX_MEMBERS = 64
ID_FIELDS = ("token_ids", "prompt_token_ids", "prompt_text")
LOGPROBS = {True: ("content", "refusal"), False: ("tokens", "token_logprobs", "top_logprobs", "text_offset")}


class Wrong(Exception):
    """The stream can't be put together; the argument is the path of the field."""


class Number(str):
    """A number as it is written."""

    def __repr__(self) -> str:
        return f"{self!s}"


class Whole(Number):
    """One without fraction and exponent."""


class Members(list[tuple[str, Any]]):
    """An object as it is written, repeated keys and all."""


def load(text: bytes) -> Any:
    """A JSON text, with objects as their members and numbers as they are written."""
    return grammar.loads(text, object_pairs_hook=Members, parse_int=Whole, parse_float=Number)


def plain(value: Any) -> Any:
    """The same with dicts; the last of repeated keys counts."""
    if isinstance(value, Members):
        return {key: plain(inner) for key, inner in value}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return value


def carries(value: Any) -> bool:
    """Is it something other than null, "", [] and {}?"""
    return value is not None and (isinstance(value, bool) or len(value) > 0)


def whole(fragments: Sequence[str]) -> str:
    """The fragments joined, with surrogates that come to stand side by side made one character."""
    return "".join(fragments).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def shown(name: str) -> str:
    """A name in a message: half a surrogate pair stays an escape, and a long name is cut."""
    text = name.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= 100 else text[:100] + "..."


def need(path: str, value: Any, *kinds: type) -> bool:
    """Does it carry a value, which then must be of one of these types?"""
    if not carries(value):
        return False
    if type(value) not in kinds:
        raise Wrong(path)
    return True


def walk(path: str, members: Members, known: Sequence[str]) -> Iterator[tuple[str, str, Any]]:
    """The known members with their paths; others must carry nothing, and none may be repeated."""
    seen = set()
    for name, value in members:
        if name in known:
            if name in seen:
                raise Wrong(path + name)
            seen.add(name)
            yield name, path + name, value
        elif carries(value):
            raise Wrong(path + shown(name))


class Assembly:
    """What came so far."""

    def __init__(self, chat: bool, keep_ids: bool) -> None:
        self.chat = chat
        self.keep_ids = keep_ids
        self.chosen = self.stop_reason_seen = self.refusal_seen = False
        self.members: dict[str, Any] = {}
        self.usage: Any = None
        self.role = "assistant"
        self.strings: dict[str, list[str]] = {}
        self.calls: dict[int, dict[str, list[str]]] = {}
        self.function_call: dict[str, list[str]] = {}
        self.logprobs: dict[str, list[Any]] = {}
        self.reasons: dict[str, Any] = {}
        self.ids: dict[str, dict[str, Any]] = {"event": {}, "choice": {}, "delta": {}}

    def add(self, event: Any) -> None:
        """One event's JSON, as `load` reads it."""
        if type(event) is not Members:
            raise Wrong("")
        names = [name for name, _ in event]
        for at, (name, value) in enumerate(event):
            if name in names[:at]:
                raise Wrong(shown(name))
            if name == "choices":
                if need(name, value, list):
                    self._choices(value)
            elif name == "usage":
                self.usage = plain(value) if need(name, value, Members) else self.usage
            elif name in ID_FIELDS:
                self._ids(self.ids["event"], name, name, value)
            elif name != "object":
                old = self.members.get(name)
                if name not in self.members and len(self.members) == MAX_MEMBERS:
                    raise Wrong("")
                if carries(value) or (not carries(old) and (value is not None or old is None)):
                    self.members[name] = plain(value)

    def _ids(self, place: dict[str, Any], name: str, path: str, value: Any) -> None:
        if not self.keep_ids:
            return
        if name == "prompt_text":
            if need(path, value, str):
                place[name] = value
        elif need(path, value, list) or (name == "token_ids" and type(value) is list):
            if name == "token_ids":
                for at, item in enumerate(value):
                    if type(item) is not Whole:
                        raise Wrong(f"{path}[{at}]")
                value = place.get(name, []) + value
            place[name] = plain(value)

    def _ids_of(self, place: str) -> dict[str, Any]:
        return {name: self.ids[place][name] for name in ID_FIELDS if name in self.ids[place]}

    def _choices(self, choices: list[Any]) -> None:
        if need("choices[0]", choices[0], Members) or type(choices[0]) is Members:
            self.chosen = True
            self._choice(choices[0])
        if len(choices) > 1:
            raise Wrong("choices[1]")

    def _choice(self, choice: Members) -> None:
        answer = "delta" if self.chat else "text"
        known = (answer, "index", "logprobs", "finish_reason", "stop_reason", *ID_FIELDS)
        for name, path, value in walk("choices[0].", choice, known):
            if name == "delta":
                if need(path, value, Members):
                    self._delta(value)
            elif name == "text":
                self._string(name, path, value)
            elif name == "index":
                if need(path, value, Whole) and value != "0":
                    raise Wrong(path)
            elif name == "logprobs":
                if need(path, value, Members):
                    self._logprobs(value)
            elif name == "finish_reason":
                self.reasons[name] = value if need(path, value, str) else self.reasons.get(name)
            elif name == "stop_reason":
                self.stop_reason_seen = True
                self.reasons[name] = value if need(path, value, str, Whole) else self.reasons.get(name)
            else:
                self._ids(self.ids["choice"], name, path, value)

    def _string(self, name: str, path: str, value: Any) -> None:
        if need(path, value, str):
            self.strings.setdefault(name, []).append(value)

    def _delta(self, delta: Members) -> None:
        strings = ("content", "reasoning", "reasoning_content", "refusal")
        for name, path, value in walk(
            "choices[0].delta.", delta, (*strings, "role", "tool_calls", "function_call", *ID_FIELDS)
        ):
            if name in strings:
                self._string(name, path, value)
            elif name == "role":
                self.role = value if need(path, value, str) else self.role
            elif name == "tool_calls":
                for at, call in enumerate(value if need(path, value, list) else []):
                    if need(f"{path}[{at}]", call, Members) or type(call) is Members:
                        self._tool_call(f"{path}[{at}].", call)
            elif name == "function_call":
                if need(path, value, Members):
                    for part, fragment in self._function(f"{path}.", value):
                        self.function_call.setdefault(part, []).append(fragment)
            else:
                self._ids(self.ids["delta"], name, path, value)

    def _function(self, path: str, function: Members) -> Iterator[tuple[str, str]]:
        for name, inner, value in walk(path, function, ("name", "arguments")):
            if need(inner, value, str):
                yield name, value

    def _tool_call(self, path: str, call: Members) -> None:
        index = None
        fragments = []
        for name, inner, value in walk(path, call, ("index", "id", "type", "function")):
            if name == "index":
                if type(value) is not Whole or value.startswith("-") or int(value) >= 2**63:
                    raise Wrong(inner)
                index = int(value)
            elif name == "id":
                fragments += [("id", value)] if need(inner, value, str) else []
            elif name == "type":
                if need(inner, value, str) and value != "function":
                    raise Wrong(inner)
            elif need(inner, value, Members):
                fragments += self._function(f"{inner}.", value)
        if index is None:
            raise Wrong(path + "index")
        parts = self.calls.setdefault(index, {})
        for name, fragment in fragments:
            parts.setdefault(name, []).append(fragment)

    def _logprobs(self, logprobs: Members) -> None:
        allowed: dict[str, tuple[type, ...]] = {
            "content": (Members,),
            "refusal": (Members,),
            "tokens": (str,),
            "token_logprobs": (Whole, Number, type(None)),
            "top_logprobs": (Members, type(None)),
            "text_offset": (Whole,),
        }
        for name, path, value in walk("choices[0].logprobs.", logprobs, LOGPROBS[self.chat]):
            self.refusal_seen = self.refusal_seen or (self.chat and name == "refusal")
            if need(path, value, list) or type(value) is list:
                for at, item in enumerate(value):
                    if type(item) not in allowed[name]:
                        raise Wrong(f"{path}[{at}]")
                self.logprobs[name] = self.logprobs.get(name, []) + plain(value)

    def response(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int, shape: str) -> Any:
        """The response, its fields in order."""
        if not self.chosen:
            raise Wrong("choices")
        vllm = shape == "vllm"
        choice: dict[str, Any] = {"index": Whole(0)}
        if self.chat:
            choice["message"] = self._message(vllm)
        else:
            choice["text"] = whole(self.strings.get("text", []))
            if not vllm:
                choice = {"text": choice["text"], "index": choice["index"]}
        choice["logprobs"] = self._whole_logprobs(vllm)
        choice["finish_reason"] = self.reasons.get("finish_reason")
        if vllm or self.stop_reason_seen:
            choice["stop_reason"] = self.reasons.get("stop_reason")
        if vllm:
            choice |= dict.fromkeys(("token_ids",) if self.chat else ("token_ids", "prompt_logprobs"))
            choice |= {} if self.chat else {"prompt_token_ids": None}
            choice |= {"routed_experts": None}
        choice |= self._ids_of("choice")

        members = {name: value for name, value in self.members.items() if name not in ("object", "choices")}
        members["object"] = "chat.completion" if self.chat else "text_completion"
        members["choices"] = [choice]
        members["usage"] = self._usage(prompt_tokens, completion_tokens, cached_tokens, vllm)
        members |= self._ids_of("event")
        order = ["id", "object", "created", "model", "choices"]
        nulls = ["service_tier", "system_fingerprint"]
        if vllm:
            order += [*nulls, "usage"]
            if self.chat:
                nulls += ["prompt_logprobs", "prompt_token_ids", "prompt_text"]
            nulls += ["kv_transfer_params", "ec_transfer_params", "metrics"]
            order += nulls[2:]
            members = dict.fromkeys(nulls) | members
            if isinstance(members["metrics"], dict):
                members["metrics"] = _ordered(
                    "time_to_first_token_ms generation_time_ms queue_time_ms mean_itl_ms tokens_per_second"
                    " speculative_decoding",
                    members["metrics"],
                )
        else:
            order += ["usage", *nulls]
        return {name: members[name] for name in order if name in members} | members

    def _message(self, vllm: bool) -> dict[str, Any]:
        came: dict[str, Any] = {
            name: whole(fragments) for name, fragments in self.strings.items() if name != "content"
        }
        if self.function_call:
            came["function_call"] = {
                "name": whole(self.function_call.get("name", [])),
                "arguments": whole(self.function_call.get("arguments", [])),
            }
        if self.calls:
            calls: list[Any] = []
            came["tool_calls"] = calls
            for _, parts in sorted(self.calls.items()):
                for part, name in (("id", "id"), ("name", "function.name")):
                    if part not in parts:
                        raise Wrong(f"choices[0].message.tool_calls[{len(calls)}].{name}")
                text = {part: whole(fragments) for part, fragments in parts.items()}
                function = {"name": text["name"], "arguments": text.get("arguments", "")}
                calls.append({"id": text["id"], "type": "function", "function": function})
        content = self.strings.get("content", [])
        came["role"] = self.role
        came["content"] = whole(content) if content or len(came) == 1 else None
        if vllm:
            order = "role content refusal annotations audio function_call tool_calls"
            order += " reasoning reasoning_content"
            nulls = ["refusal", "annotations", "audio", "function_call"]
            nulls += [] if "reasoning_content" in came else ["reasoning"]
        else:
            order = "role content refusal reasoning reasoning_content tool_calls function_call"
            nulls = ["refusal"]
        came = dict.fromkeys(nulls) | came
        return {name: came[name] for name in order.split() if name in came} | self._ids_of("delta")

    def _whole_logprobs(self, vllm: bool) -> Any:
        if not self.logprobs:
            return None
        if self.chat:
            out = {"content": self.logprobs.get("content")}
            if not vllm or self.refusal_seen:
                out["refusal"] = self.logprobs.get("refusal")
            return out
        order = ("text_offset", "token_logprobs", "tokens", "top_logprobs") if vllm else LOGPROBS[False]
        return {name: self.logprobs.get(name) for name in order}

    def _usage(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int, vllm: bool) -> Any:
        names = ("prompt_tokens", "total_tokens", "completion_tokens")
        counts = (prompt_tokens, prompt_tokens + completion_tokens, completion_tokens)
        usage = self.usage
        if usage is None:
            usage = {name: Whole(count) for name, count in zip(names, counts, strict=True)}
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict):
            if cached_tokens >= 0 and "cached_tokens" in details:
                details = details | {"cached_tokens": Whole(cached_tokens)}
            if vllm:
                details = _ordered("cached_tokens created_cache_tokens multimodal_tokens", details)
            usage = usage | {"prompt_tokens_details": details}
        if not vllm:
            return usage
        absent = dict.fromkeys(("prompt_tokens_details", "completion_tokens_details"))
        usage = absent | usage
        order = (*names, *absent)
        return {name: usage[name] for name in order if name in usage} | usage


def _ordered(names: str, members: dict[str, Any]) -> dict[str, Any]:
    return dict.fromkeys(names.split()) | members


def assemble(
    events: Sequence[bytes], chat: bool, keep_ids: bool, shape: str, counts: tuple[int, int, int]
) -> Any:
    """The response to these events, with (prompt, completion, cached) token counts. Raises Wrong."""
    assembly = Assembly(chat, keep_ids)
    for event in events:
        assembly.add(load(event))
    return assembly.response(*counts, shape)
