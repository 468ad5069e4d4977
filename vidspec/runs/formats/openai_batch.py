"""Answers in the form of OpenAI's batch API, a line for each request of the input."""

from __future__ import annotations

from vidspec.escaping import json_text
from vidspec.events.record import RecordDict
from vidspec.files import FileKind
from vidspec.runs.formats.base import LineFormat, flat_record, output_formats


@output_formats.register("openai-batch")
class BatchFormat(LineFormat):
    """Failed clips are lines with an ``error``.

    ``id`` names the clip and its settings, and ``created`` is 0, so that the same captions give the same bytes.
    """

    suffix = ".jsonl"
    clip_files = "never"
    replaceable = FileKind("file of answers", rb'\A\{"id": ?"batch_req_')

    def line(self, record: RecordDict) -> str:
        job = flat_record(record)
        name = f"batch_req_{job['clip']}{job['settings']}"
        line: dict[str, object] = {"id": name, "custom_id": None if job.get("id") is None else str(job["id"])}
        if (error := record["error"]) is not None:
            return json_text({**line, "response": None, "error": {"code": error["kind"], "message": error["message"]}})
        message = {"role": "assistant", "content": record["caption"] or ""}
        if record.get("reasoning") is not None:
            message["reasoning_content"] = record["reasoning"]
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": "length" if record.get("ended") == "length" else "stop",
        }
        body = {
            "id": name.replace("batch_req_", "chatcmpl-"),
            "object": "chat.completion",
            "created": 0,
            "model": record["models"].get("target"),
            "choices": [choice],
        }
        answer = {"status_code": 200, "request_id": name, "body": body}
        return json_text({**line, "response": answer, "error": None})
