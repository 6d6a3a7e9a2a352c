"""Why a test of the SDK fails with our classes although it passes with the SDK's.

Each entry: the arms it holds for (`server`, `local`), a pattern of test names (`fnmatch`), and the reason. A failure
without an entry is shown as unexplained.
"""

from __future__ import annotations

__all__ = ["REASONS"]

COPY = "a copy shares the model on this machine with its client: `copy` does not take disco's own arguments"
MODULE = "asks whether the SDK's module-level client, which stays the SDK's, is of the class that stands in"
OWNED = "counts the SDK's retries of a failing server: with a model behind, that model takes over instead"
TAKEN_OVER = "expects the server's failure: with a model behind, that model answers instead"
STREAMED = "compares the request's body: with a model behind, the server is always asked for a stream"
ENDED = "sends events after the one that ends a response"
UNUSABLE = "expects an answer with nothing in it, or half a tool call: with a model behind, that model answers instead"
NUMBERED = "sends two items with one number: a routed answer's items have numbers of their own"
REPACKED = "compares the stream chunk by chunk: a routed answer's chunks are disco's own"
NAMED = "compares the printed name of the class: a routed answer has one of its own, below the SDK's"
ONE_RESPONSE = "asks for the id of the one request, `_request_id`: a routed answer may have several, or none"
KEYLESS = "expects an error without a key: with a model on this machine none is needed"

REASONS: tuple[tuple[str, str, str], ...] = (
    ("server local", "tests/test_client.py::*::test_copy_signature", COPY),
    ("server local", "tests/test_module_client.py::test_azure_*", MODULE),
    ("local", "tests/test_client.py::*::test_*retr*", OWNED),
    ("local", "tests/test_client.py::*::test_bearer_token_refresh_async*", OWNED),
    ("local", "tests/test_client.py::*WorkloadIdentity401Retry::*", TAKEN_OVER),
    ("local", "tests/test_client.py::*::test_validate_headers*", KEYLESS),
    ("local", "tests/test_streaming.py::test_request_errors_are_wrapped*", TAKEN_OVER),
    ("local", "tests/test_streaming.py::test_done_http11_connection_reuse*", TAKEN_OVER),
    (
        "local",
        "tests/test_data_residency_regressions.py::test_*sync_request_only_changes_destination",
        STREAMED,
    ),
    ("local", "tests/lib/test_responses_tool_runner.py::test_ledger_admission_failure_*", TAKEN_OVER),
    (
        "local",
        "tests/lib/responses/test_null_output_items.py::test_typed_lifecycle_output_and_sparse_*",
        ENDED,
    ),
    (
        "local",
        "tests/test_httpx2_decompression.py::test_decoding_failure_closes_response_stream*",
        TAKEN_OVER,
    ),
    ("local", "tests/lib/test_bedrock_runtime.py::*", ONE_RESPONSE),
    ("local", "tests/lib/test_vertex_provider.py::test_google_auth_*", TAKEN_OVER),
    ("local", "tests/lib/test_vertex_provider.py::test_*", TAKEN_OVER),
    ("local", "tests/lib/test_runner_idempotency.py::*", OWNED),
    ("local", "tests/lib/test_runner_typed_tools.py::*", TAKEN_OVER),
    ("local", "tests/lib/test_responses_tool_runner.py::test_ledger_admission_*", OWNED),
    ("local", "tests/lib/test_azure_deployment_path.py::*", TAKEN_OVER),
    ("local", "tests/lib/test_azure*.py::test_*", KEYLESS),
    ("local", "tests/test_request_body_routing_order.py::*", TAKEN_OVER),
    (
        "local",
        "tests/lib/responses/test_lifecycle_replacements.py::test_completed_identity_belongs_to_one_*",
        NUMBERED,
    ),
    ("local", "tests/lib/responses/test_null_output.py::test_partial_terminal_uses_wire_order*", TAKEN_OVER),
    ("local", "tests/lib/responses/test_null_output.py::*without-items*", UNUSABLE),
    ("local", "tests/lib/responses/test_null_output_items.py::*with_only_empty_items*", UNUSABLE),
    ("local", "tests/lib/responses/test_null_output_items.py::*without_an_output_item*", UNUSABLE),
    (
        "local",
        "tests/lib/responses/test_null_output_items.py::*retains_raw_lifecycle_placeholders*",
        UNUSABLE,
    ),
    ("local", "tests/lib/responses/test_null_content.py::*null_message_content*", UNUSABLE),
    ("local", "tests/lib/responses/test_responses.py::*nullable_content*empty-content*", UNUSABLE),
    ("local", "tests/lib/test_responses_tool_runner.py::*is_checked_before_arguments*", UNUSABLE),
    ("local", "tests/lib/test_responses_tool_runner.py::test_malformed_final_message_*", UNUSABLE),
    ("local", "tests/lib/chat/test_stream_moderation.py::*", REPACKED),
    ("local", "tests/lib/chat/test_tool_call_deltas.py::*", REPACKED),
    ("server local", "tests/lib/chat/test_completions.py::*parse_*", NAMED),
)
