"""What relight needs of its Temporal namespace: that it exists and knows the search attributes."""

from __future__ import annotations

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from workflows.telling import SEARCH_ATTRIBUTES


async def check_namespace(client: Client) -> None:
    """Makes sure that the namespace exists and knows relight's search attributes. Raises ValueError with the fix."""
    names = [key.name for key in SEARCH_ATTRIBUTES]
    fix = "; ".join(
        f"temporal operator search-attribute create --namespace {client.namespace} --name {name} --type Keyword"
        for name in names
    )
    try:
        known = await client.operator_service.list_search_attributes(
            ListSearchAttributesRequest(namespace=client.namespace)
        )
    except RPCError as problem:
        if problem.status is RPCStatusCode.NOT_FOUND:
            raise ValueError(
                f"Temporal has no namespace {client.namespace!r}: create it with "
                f"`temporal operator namespace create --namespace {client.namespace} --retention 30d`"
            ) from None
        raise
    missing = [name for name in names if name not in known.custom_attributes]
    if not missing:
        return
    try:
        await client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(
                namespace=client.namespace,
                search_attributes=dict.fromkeys(missing, IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD),
            )
        )
    except RPCError as problem:
        raise ValueError(
            f"namespace {client.namespace!r} lacks search attributes {', '.join(missing)} and they could not be "
            f"created ({problem}): {fix}"
        ) from None
